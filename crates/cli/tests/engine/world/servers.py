"""The far side of a test's network: a resolver, and an index of Python and npm packages on port 80.

Arguments: the far address, the resolver's address, a folder with more wheels. Prints a line when everything is served.
"""

import base64
import hashlib
import http.server
import io
import json
import pathlib
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile

FAR, RESOLVER, WHEELS = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
NAME = "index.test"


def wheel(name):
    """A package with a module and a program that prints its name."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}.py": f"def main():\n    print('{name} from the index')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
    }
    record = f"{info}/RECORD"
    lines = [f"{path},sha256={digest(text)},{len(text)}\n" for path, text in files.items()]
    files[record] = "".join(lines) + f"{record},,\n"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{module}-1.0-py3-none-any.whl", content.getvalue()


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def npm_package(name):
    files = {
        "package/package.json": json.dumps({"name": name, "version": "1.0.0", "bin": {name: "main.js"}}),
        "package/main.js": f"#!/usr/bin/env node\nconsole.log('{name} from the index')\n",
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


PYTHON = dict(wheel(name) for name in ("demo-pip", "demo-uv"))
PYTHON.update((path.name, path.read_bytes()) for path in WHEELS.glob("*.whl"))
NPM = {"demo-npm": npm_package("demo-npm")}


def page(path):
    """Content type and content of a page, or None."""
    parts = path.strip("/").split("/")
    if parts[0] == "simple" and len(parts) == 2:
        found = [name for name in PYTHON if name.split("-")[0].replace("_", "-").lower() == parts[1]]
        links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in found)
        return ("text/html", links.encode()) if found else None
    if parts[0] == "files" and parts[-1] in PYTHON:
        return "application/octet-stream", PYTHON[parts[-1]]
    if parts[0] == "npm" and parts[-1].removesuffix(".tgz") in NPM:
        name = parts[-1].removesuffix(".tgz")
        if parts[-1].endswith(".tgz"):
            return "application/octet-stream", NPM[name]
        sum512 = base64.b64encode(hashlib.sha512(NPM[name]).digest()).decode()
        source = {"tarball": f"http://{NAME}/npm/{name}.tgz", "integrity": f"sha512-{sum512}"}
        version = {"name": name, "version": "1.0.0", "bin": {name: "main.js"}, "dist": source}
        about = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return "application/json", json.dumps(about).encode()
    return None


class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, content = page(self.path) or ("text/plain", b"not here\n")
        self.send_response(200 if page(self.path) else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    # uv asks whether it may fetch parts of a file.
    do_HEAD = do_GET

    def log_message(self, *words):
        pass


def answer(query):
    """The response to a DNS query with one question: an address for NAME, nothing for other types, no such name else."""
    end, labels = 12, []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].decode().lower())
        end += 1 + query[end]
    kind = struct.unpack("!H", query[end + 1 : end + 3])[0]
    known = ".".join(labels) == NAME
    found = known and kind == 1
    flags = 0x8180 if known else 0x8183
    head = query[:2] + struct.pack("!HHHHH", flags, 1, int(found), 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(FAR) if found else b""
    return head + query[12 : end + 5] + record


def resolve():
    while True:
        query, client = dns.recvfrom(4096)
        dns.sendto(answer(query), client)


# The other end of the pair arrives when the near side has made it.
while subprocess.run(["ip", "link", "set", "far0", "up"], stderr=subprocess.DEVNULL).returncode:
    time.sleep(0.01)
for address in (f"{FAR}/24", f"{RESOLVER}/32"):
    subprocess.run(["ip", "address", "add", address, "dev", "far0"], check=True)
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dns.bind((RESOLVER, 53))
threading.Thread(target=resolve, daemon=True).start()
server = http.server.ThreadingHTTPServer((FAR, 80), Index)
print("served", flush=True)
server.serve_forever()
