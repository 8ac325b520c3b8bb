"""Counts its visitors in SQLite."""

import http.server
import sqlite3


class Counter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with sqlite3.connect("/data/counter.db") as database:
            database.execute("create table if not exists visits (at text default current_timestamp)")
            database.execute("insert into visits default values")
            (count,) = database.execute("select count(*) from visits").fetchone()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(count).encode())

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", 8000), Counter).serve_forever()
