"""A program in a sandbox: a page with many requests, an echo over WebSockets, server-sent events, and a record of what it was sent."""

import base64
import hashlib
import json
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SEEN = []
LOCK = threading.Lock()
PAGE = b"""<!doctype html><html><head><title>page of the sandbox</title></head><body>
<h1>hello</h1><script src="/part/script.js"></script>
<script>for (let i = 0; i < 40; i++) document.body.appendChild(new Image()).src = `/part/${i}.svg`;</script>
</body></html>"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, body, kind="text/html"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def record(self):
        with LOCK:
            SEEN.append({"method": self.command, "path": self.path, "headers": dict(self.headers.items())})

    def do_POST(self):
        self.record()
        self.reply(b"posted:" + self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self):
        if self.path == "/seen":
            with LOCK:
                return self.reply(json.dumps(SEEN).encode(), "application/json")
        self.record()
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo()
        if self.path == "/events":
            return self.events()
        if self.path.endswith(".svg"):
            return self.reply(b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', "image/svg+xml")
        if self.path.endswith(".js"):
            return self.reply(b"window.secret = 'of this sandbox';", "text/javascript")
        self.reply(PAGE)

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(600):
            try:
                self.wfile.write(f"data: {number}\n\n".encode())
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.1)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while (head := self.rfile.read(2)) and len(head) == 2 and head[0] & 0xF == 1:
            length = head[1] & 0x7F
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes([0x81, len(text)]) + text)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


socketserver.TCPServer.allow_reuse_address = True
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
