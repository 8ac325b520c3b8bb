"""A minimal client of the Kubernetes API, without any interpretation of requests and responses."""

import base64
import http.client
import json
import pathlib
import ssl
import subprocess
import tempfile
import threading
import time


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:2000]!r}"


class Api:
    """One API server, as the user of a kubeconfig."""

    def __init__(self, kubeconfig):
        self.kubeconfig = pathlib.Path(kubeconfig)
        shown = subprocess.run(
            ["kubectl", "config", "view", "--raw", "--minify", "-o", "json", "--kubeconfig", str(kubeconfig)],
            capture_output=True, text=True, check=True, timeout=30,
        )
        config = json.loads(shown.stdout)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = cluster["server"].removeprefix("https://").rstrip("/")
        self.context = ssl.create_default_context()
        if "certificate-authority-data" in cluster:
            self.context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        elif "certificate-authority" in cluster:
            self.context.load_verify_locations(cluster["certificate-authority"])
        elif cluster.get("insecure-skip-tls-verify"):
            self.context.check_hostname = False
            self.context.verify_mode = ssl.CERT_NONE
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as pair:
                pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
                pair.flush()
                self.context.load_cert_chain(pair.name)
        self.token = user.get("token")
        self.local = threading.local()

    def _connect(self):
        host, _, port = self.server.rpartition(":")
        return http.client.HTTPSConnection(host, int(port), context=self.context, timeout=60)

    def _headers(self, headers):
        all_headers = {"Accept": "application/json", "User-Agent": "differential", **(headers or {})}
        if self.token:
            all_headers.setdefault("Authorization", f"Bearer {self.token}")
        return all_headers

    def request(self, method, path, body=None, headers=None):
        """Sends one request over this thread's connection; `body` is an object, text or bytes."""
        headers = self._headers(headers)
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        if isinstance(body, str):
            body = body.encode()
        for attempt in (1, 2):
            connection = getattr(self.local, "connection", None) or self._connect()
            self.local.connection = connection
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                content = response.read()
                return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                # The server closed an idle connection without a response.
                connection.close()
                self.local.connection = None
                if attempt == 2:
                    raise

    def get(self, path):
        return self.request("GET", path)

    def must(self, method, path, body=None, headers=None):
        """The response's object; anything but success fails."""
        answer = self.request(method, path, body, headers)
        assert 200 <= answer.status < 300, f"{method} {path}: {answer}"
        return answer.json()

    def watch(self, path, seconds):
        """A watch that has been accepted by the server when this returns."""
        return Watch(self, path, seconds)

    def eventually(self, what, look, within=60):
        """Repeats `look` until it returns something true."""
        deadline = time.monotonic() + within
        while True:
            seen = look()
            if seen:
                return seen
            assert time.monotonic() < deadline, f"{what}: not within {within} s"
            time.sleep(0.05)


class Watch:
    """Events of one watch, collected in the background until it ends."""

    def __init__(self, api, path, seconds):
        self.connection = api._connect()
        self.connection.request("GET", path, None, api._headers({}))
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.events = []
        self.changed = threading.Condition()
        self.seconds = seconds
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        try:
            while True:
                line = self.response.readline()
                if not line:
                    return
                if line.strip():
                    with self.changed:
                        self.events.append(json.loads(line))
                        self.changed.notify_all()
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            return

    def until(self, enough):
        """Waits until `enough(events)`; gives all events so far."""
        with self.changed:
            self.changed.wait_for(lambda: enough(self.events), timeout=self.seconds)
            return list(self.events)

    def close(self):
        try:
            # Ends the reader, which may be inside a read.
            self.connection.sock and self.connection.sock.shutdown(2)
        except OSError:
            pass
        self.connection.close()
        self.thread.join(5)
