"""A scripted Kubernetes API and router, for behaviours that a real engine shows only occasionally.

Enough of both for every SDK: claims that become what the test says after they are created, Sandboxes with a given status, and a router that
answers from a script and remembers what it was sent.
"""

import http.server
import json
import pathlib
import threading
import time
import urllib.parse

CLAIMS, SANDBOXES = "sandboxclaims", "sandboxes"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, content, headers=()):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _any(self):
        self.server.cluster.handle(self)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any


class FakeRouter:
    """Returns responses from a list, or 200 once the list is empty; records each request as (method, path, headers, body)."""

    def __init__(self):
        self.seen = []
        self.script = []
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.cluster = self

    def handle(self, request):
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.command, request.path, headers, request.body()))
        if self.script:
            status, content, *more = self.script.pop(0)
            request.answer(status, content, *more)
        elif request.path.startswith("/execute"):
            request.answer(200, {"stdout": "ok\n", "stderr": "", "exit_code": 0})
        elif request.path.startswith("/exists"):
            request.answer(200, {"path": "x", "exists": True})
        elif request.path.startswith("/list"):
            request.answer(200, [])
        else:
            request.answer(200, b"content")

    def headers(self, index=-1):
        return self.seen[index][2]


class FakeCluster:
    """Claims and Sandboxes. `becomes` lists what happens to a new claim: its statuses in order, or "DELETED"."""

    def __init__(self):
        self.version = 100
        self.changed = threading.Condition()
        self.claims = {}
        self.deleted = []
        self.created = []
        self.becomes = [self.ready("box")]
        self.sandbox = {"status": {"podIPs": ["10.0.0.5"], "conditions": self.ready("box")["conditions"]}}
        self.sandbox_answer = None
        self.events = []
        self.gateway = None
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.cluster = self

    @staticmethod
    def ready(sandbox):
        conditions = [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        return {"sandbox": {"name": sandbox}, "conditions": conditions}

    @staticmethod
    def not_ready(reason):
        words = {"message": f"because {reason}", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        return {"conditions": [{"type": "Ready", "status": "False", "reason": reason, **words}]}

    def write_kubeconfig(self, path):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.server.url}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}],
        }
        pathlib.Path(path).write_text(json.dumps(config))

    def _store(self, claim, kind):
        with self.changed:
            self.version += 1
            claim["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, kind, json.loads(json.dumps(claim))))
            self.changed.notify_all()

    def _live(self, claim, steps):
        for step in steps:
            time.sleep(0.05)
            if step == "DELETED":
                self.claims.pop(claim["metadata"]["name"], None)
                self._store(claim, "DELETED")
                return
            claim["status"] = step
            self._store(claim, "MODIFIED")

    def handle(self, request):
        parts = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        body = request.body()
        segments = parts.path.strip("/").split("/")
        name = segments[6] if len(segments) > 6 else None
        resource = segments[5] if len(segments) > 5 else ""
        if query.get("watch", "").lower() in ("true", "1"):
            return self._watch(request, resource, query)
        if resource == CLAIMS:
            return self._claims(request, name, body)
        if resource == SANDBOXES and name:
            if self.sandbox_answer:
                return request.answer(*self.sandbox_answer)
            return request.answer(200, self._sandbox(name, segments[2]))
        if resource in ("sandboxwarmpools", "sandboxtemplates") and name:
            return request.answer(200, {"apiVersion": "/".join(segments[1:3]), "kind": "X", "metadata": {"name": name}})
        if resource == "gateways":
            return request.answer(200, {"apiVersion": "v1", "kind": "GatewayList", "metadata": {"resourceVersion": "1"}, "items": [self.gateway]})
        if resource in (CLAIMS, SANDBOXES):
            return request.answer(200, {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
        request.answer(404, _failure(404, "NotFound", f"{request.path} not found"))

    def _sandbox(self, name, version):
        metadata = {"name": name, "namespace": "default", "uid": "s-1", "resourceVersion": "1"}
        group = "agents.x-k8s.io"
        spec = {"podTemplate": {"spec": {}}}
        return {"apiVersion": f"{group}/{version}", "kind": "Sandbox", "metadata": metadata, "spec": spec, **self.sandbox}

    def _claims(self, request, name, body):
        if request.command == "POST":
            claim = json.loads(body)
            self.created.append(json.loads(body))
            claim["metadata"].update(uid=f"u-{len(self.created)}", namespace="default")
            self.claims[claim["metadata"]["name"]] = claim
            self._store(claim, "ADDED")
            answer = json.loads(json.dumps(claim))
            threading.Thread(target=self._live, args=(claim, self.becomes), daemon=True).start()
            return request.answer(201, answer)
        if request.command == "DELETE":
            self.deleted.append(name)
            claim = self.claims.pop(name, None)
            if claim is None:
                return request.answer(404, _failure(404, "NotFound", f'sandboxclaims "{name}" not found'))
            self._store(claim, "DELETED")
            return request.answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}})
        if name is None:
            items = list(self.claims.values())
            return request.answer(200, {"apiVersion": "x/v1", "kind": "SandboxClaimList", "metadata": {"resourceVersion": str(self.version)}, "items": items})
        if name not in self.claims:
            return request.answer(404, _failure(404, "NotFound", f'sandboxclaims "{name}" not found'))
        return request.answer(200, self.claims[name])

    def _watch(self, request, resource, query):
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        name = query.get("fieldSelector", "").partition("=")[2]
        since = int(query.get("resourceVersion") or 0)
        deadline = time.monotonic() + min(float(query.get("timeoutSeconds") or 60), 60)
        try:
            if resource == "gateways" and self.gateway:
                _send_event(request, "ADDED", self.gateway)
            elif resource == SANDBOXES:
                _send_event(request, "ADDED", self._sandbox(name, request.path.split("/")[3]))
            elif not since:
                # Without a resourceVersion: first the existing objects, then the changes.
                since = self.version
                if name in self.claims:
                    _send_event(request, "ADDED", self.claims[name])
            while time.monotonic() < deadline:
                with self.changed:
                    fresh = [event for event in self.events if event[0] > since and event[2]["metadata"]["name"] == name]
                    if not fresh or resource != CLAIMS:
                        self.changed.wait(0.1)
                        fresh = []
                for version, kind, claim in fresh:
                    since = version
                    _send_event(request, kind, claim)
            request.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True


def _send_event(request, kind, item):
    data = json.dumps({"type": kind, "object": item}).encode() + b"\n"
    request.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    request.wfile.flush()


def _failure(code, reason, message):
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message}
