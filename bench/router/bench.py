#!/usr/bin/env python3
"""Router benchmark: direct, nginx, haproxy, ours (HTTP/1.1 and HTTP/2) and a peer router, side by side in one run.

    bench/router/bench.py [--router PATH] [--peer PATH] [--seconds 5] [--rounds 2] [--connections 1,50,500]

All proxies keep connections to the backend alive and write an access log; ours and the peer also count metrics. Load
comes from a process of its own (wrk, h2load, oha). CPU seconds are those of the proxy alone. Ratios against nginx in
the same run are what counts: absolute numbers are this machine's.
Debian's wrk, nginx, haproxy and nghttp2-client are installed with apt-get when absent; oha is used when it is on the PATH or named by AGENT_SANDBOX_OHA.
"""

import argparse
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]
OHA = os.environ.get("AGENT_SANDBOX_OHA") or shutil.which("oha")
SECRET = "0123456789abcdef0123456789abcdef"
PACKAGES = {"wrk": "wrk", "nginx": "nginx-light", "haproxy": "haproxy", "h2load": "nghttp2-client"}


def ensure_tools():
    missing = [package for tool, package in PACKAGES.items() if not shutil.which(tool)]
    if missing:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing], check=True, stdout=sys.stderr)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_port(port, process=None):
    deadline = time.time() + 30
    while time.time() < deadline:
        if process and process.poll() is not None:
            raise SystemExit(f"{process.args[0]} ended with status {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"no process listens on port {port}")


def tree(pid):
    """A process and its descendants."""
    found = [pid]
    for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split():
        found += tree(int(child))
    return found


def cpu_seconds(pid):
    total = 0
    for each in tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except FileNotFoundError:
            pass
    return total / TICK


def resident_mb(pid):
    total = 0
    for each in tree(pid):
        match = re.search(r"Pss:\s+(\d+) kB", Path(f"/proc/{each}/smaps_rollup").read_text())
        total += int(match.group(1))
    return total / 1024


class PodApi(http.server.BaseHTTPRequestHandler):
    """A fake API with the two requests that a router needs: list Pods, and watch them (without any event)."""

    protocol_version = "HTTP/1.1"
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "box", "namespace": "default", "uid": "p", "resourceVersion": "1",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "h"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box", "uid": "u",
                                 "controller": True}],
        },
        "spec": {}, "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }

    def do_GET(self):
        if "watch=true" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.server.stopping.wait()
            return
        body = json.dumps({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"},
                           "items": [self.pod]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Bench:
    def __init__(self, options, directory):
        self.options, self.dir = options, directory
        self.processes, self.targets = [], {}
        self.backend = free_port()
        self.headers = {"X-Sandbox-ID": "box", "X-Sandbox-Pod-IP": "127.0.0.1", "X-Sandbox-Port": str(self.backend)}
        self.api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), PodApi)
        self.api.stopping = threading.Event()
        self.api.daemon_threads = True
        threading.Thread(target=self.api.serve_forever, daemon=True).start()
        (directory / "kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.api.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))
        (directory / "secret").write_text(SECRET)

    def spawn(self, name, port, command, log="stderr"):
        environment = os.environ | {"KUBECONFIG": str(self.dir / "kubeconfig")}
        with open(self.dir / f"{name}.log", "w") as out:
            process = subprocess.Popen(command, stdout=out if log == "stdout" else subprocess.DEVNULL, stderr=out, env=environment)
        self.processes.append(process)
        wait_port(port, process)
        return process.pid

    def start(self):
        workers = os.cpu_count()
        nginx = f"pid {self.dir}/NAME.pid; error_log {self.dir}/NAME.err; daemon off; events {{ worker_connections 8192; }}"
        backend = nginx.replace("NAME", "backend") + (
            f" worker_processes 1; http {{ access_log off; keepalive_requests 1000000000; server {{"
            f" listen 127.0.0.1:{self.backend} backlog=4096; location / {{ return 200 'hello\\n'; }} }} }}")
        (self.dir / "backend.conf").write_text(backend)
        pid = self.spawn("backend", self.backend, ["nginx", "-c", str(self.dir / "backend.conf")])
        self.targets["direct"] = (self.backend, pid, {})

        port, h2 = free_port(), free_port()
        fields = ("time", "time_iso8601"), ("method", "request_method"), ("path", "uri"), ("client", "remote_addr"), \
            ("id", "http_x_sandbox_id"), ("agent", "http_user_agent")
        line = ",".join(f'"{key}":"${value}"' for key, value in fields)
        proxy = nginx.replace("NAME", "nginx") + (
            f" worker_processes {workers}; http {{ log_format j escape=json"
            f" '{{{line},\"status\":$status,\"duration\":$request_time,\"bytes\":$body_bytes_sent}}';"
            f" access_log {self.dir}/nginx-access.log j; keepalive_requests 1000000000;"
            f" upstream b {{ server 127.0.0.1:{self.backend}; keepalive 512; keepalive_requests 1000000000; }}"
            f" server {{ listen 127.0.0.1:{port} backlog=4096; listen 127.0.0.1:{h2} http2; location / {{"
            f" proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ''; }} }} }}")
        (self.dir / "nginx.conf").write_text(proxy)
        pid = self.spawn("nginx", port, ["nginx", "-c", str(self.dir / "nginx.conf")])
        self.targets["nginx"] = (port, pid, {"h2": h2})

        port = free_port()
        (self.dir / "haproxy.cfg").write_text(
            f"global\n nbthread {workers}\n log stdout format raw local0\n maxconn 4000\ndefaults\n mode http\n log global\n"
            f" option httplog\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n http-reuse always\n"
            f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\n"
            f"backend b\n server s 127.0.0.1:{self.backend} pool-max-conn 512\n")
        pid = self.spawn("haproxy", port, ["haproxy", "-f", str(self.dir / "haproxy.cfg"), "-db"], log="stdout")
        self.targets["haproxy"] = (port, pid, {})

        for name, extra in (("ours", []), ("ours+token", ["--authz-mode=scoped-token",
                            f"--authz-scoped-token-secret-file={self.dir}/secret"])):
            port = free_port()
            pid = self.spawn(name, port, [*self.options.router, f"--http-bind-address=127.0.0.1:{port}",
                             f"--metrics-bind-address=127.0.0.1:{free_port()}", "--health-probe-bind-address=",
                             f"--kubeconfig={self.dir}/kubeconfig", "--allow-loopback-pod-ip", *extra])
            self.targets[name] = (port, pid, {"h2": port})
        if self.options.peer:
            port = free_port()
            pid = self.spawn("peer", port, [*shlex.split(self.options.peer), f"--http-bind-address=127.0.0.1:{port}",
                             f"--metrics-bind-address=127.0.0.1:{free_port()}",
                             f"--health-probe-bind-address=127.0.0.1:{free_port()}", "--allow-loopback-pod-ip"])
            self.targets["peer"] = (port, pid, {})

    def stop(self):
        self.api.stopping.set()
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()

    def header_arguments(self, name):
        headers = dict(self.headers)
        if name.endswith("+token"):
            headers["Authorization"] = "Bearer " + self.token
        return [part for key, value in headers.items() for part in ("-H", f"{key}: {value}")]

    def measured(self, name, command):
        port, pid, _ = self.targets[name]
        before, start = cpu_seconds(pid), time.time()
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return text, cpu_seconds(pid) - before, time.time() - start, resident_mb(pid)

    def wrk(self, name, connections):
        port = self.targets[name][0]
        text, cpu, _, memory = self.measured(name, [
            "wrk", "-t1", f"-c{connections}", f"-d{self.options.seconds}s", "--latency", *self.header_arguments(name),
            f"http://127.0.0.1:{port}/"])
        bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
        if bad:
            raise SystemExit(f"{name} refused {bad.group(1)} requests")
        count = int(re.search(r"(\d+) requests in", text).group(1))
        rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
        return {"rate": rate, "per_cpu": count / max(cpu, 0.01), "p50": latency(text, "50%"), "p99": latency(text, "99%"),
                "memory": memory}

    def h2load(self, name):
        port = self.targets[name][2]["h2"]
        text, cpu, _, memory = self.measured(name, [
            "h2load", "-t1", "-c50", "-m10", "-D", str(self.options.seconds), *self.header_arguments(name),
            f"http://127.0.0.1:{port}/"])
        done = re.search(r"(\d+) succeeded, (\d+) failed", text)
        if int(done.group(2)):
            raise SystemExit(f"{name}: {done.group(2)} requests failed over HTTP/2")
        count = int(done.group(1))
        return {"rate": count / self.options.seconds, "per_cpu": count / max(cpu, 0.01), "memory": memory}

    def oha(self, name):
        port = self.targets[name][0]
        text, cpu, _, _ = self.measured(name, [
            OHA, "--no-tui", "--output-format", "json", "-q", "10000", "-c", "50", "-z", f"{self.options.seconds}s",
            "--latency-correction", *self.header_arguments(name), f"http://127.0.0.1:{port}/"])
        found = json.loads(text)
        percentiles = found["latencyPercentiles"]
        if found["summary"]["successRate"] < 1:
            raise SystemExit(f"{name}: not every request succeeded at a fixed rate")
        return {"rate": found["summary"]["requestsPerSec"], "p50": percentiles["p50"] * 1e3, "p99": percentiles["p99"] * 1e3}


def latency(text, percentile):
    """wrk's percentile in milliseconds."""
    value, unit = re.search(rf"^\s+{percentile}\s+([\d.]+)(us|ms|s)$", text, re.M).groups()
    return float(value) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]


def best(results, key, largest=True):
    return (max if largest else min)(result[key] for result in results)


def summary(results):
    return {key: best(results, key, key in ("rate", "per_cpu")) for key in results[0]}


def report(bench):
    options = bench.options
    print(f"{os.cpu_count()} cores, {options.seconds} s a run, best of {options.rounds}; load before: {os.getloadavg()[0]:.1f}")
    for connections in options.connections:
        runs = {name: [] for name in bench.targets}
        for _ in range(options.rounds):
            for name in bench.targets:
                runs[name].append(bench.wrk(name, connections))
        found = {name: summary(results) for name, results in runs.items()}
        print(f"\nHTTP/1.1, {connections} connections")
        print(f"{'':12}{'req/s':>10}{'per CPU-s':>11}{'of nginx':>10}{'p50 ms':>9}{'p99 ms':>9}{'+p50':>8}{'+p99':>8}{'MB':>7}")
        for name, f in found.items():
            added = [f[p] - found["direct"][p] for p in ("p50", "p99")]
            print(f"{name:12}{f['rate']:10.0f}{f['per_cpu']:11.0f}{f['per_cpu'] / found['nginx']['per_cpu']:10.0%}"
                  f"{f['p50']:9.2f}{f['p99']:9.2f}{added[0]:8.2f}{added[1]:8.2f}{f['memory']:7.1f}")
        cost = 1 - found["ours+token"]["per_cpu"] / found["ours"]["per_cpu"]
        print(f"scoped tokens cost {cost:.0%} of requests per CPU-second")
        if "peer" in found:
            print(f"ours / peer: {found['ours']['rate'] / found['peer']['rate']:.1f} x requests/s")
    print("\nHTTP/2 clients (h2load, 50 connections, 10 streams each)")
    for name in ("nginx", "ours"):
        f = summary([bench.h2load(name) for _ in range(options.rounds)])
        print(f"{name:12}{f['rate']:10.0f}{f['per_cpu']:11.0f}{'':10}{'':34}{f['memory']:7.1f}")
    if OHA:
        print(f"\n10,000 requests/s over 50 connections, latency-corrected (oha, median of {options.rounds + 1})")
        runs = {name: [] for name in bench.targets if name != "ours+token"}
        for _ in range(options.rounds + 1):
            for name in runs:
                runs[name].append(bench.oha(name))
        found = {name: {key: statistics.median(run[key] for run in results) for key in results[0]} for name, results in runs.items()}
        for name, f in found.items():
            added = f["p99"] - found["direct"]["p99"]
            print(f"{name:12}{f['rate']:10.0f}/s  p50 {f['p50']:7.2f} ms  p99 {f['p99']:7.2f} ms  added p99 {added:7.2f} ms")
        ours, nginx = (found[name]["p99"] - found["direct"]["p99"] for name in ("ours", "nginx"))
        print(f"added p99 of ours / nginx: {ours / max(nginx, 0.001):.2f}")
    else:
        print("\noha is not installed: no fixed-rate run (cargo install oha, on the PATH or named by AGENT_SANDBOX_OHA)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", help="command that takes router flags, like 'agent-sandbox router' (default: the release example, built now)")
    parser.add_argument("--peer", help="command of another router with the same flags, usually a path")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connections", default="1,50,500")
    options = parser.parse_args()
    options.connections = [int(text) for text in options.connections.split(",")]
    ensure_tools()
    if options.router:
        options.router = options.router.split()
        # `agent-sandbox router` mints tokens with another command than the example.
        mint = [options.router[0], *(["mint"] if options.router[-1] == "serve" else ["token", "mint"])]
    else:
        subprocess.run(["cargo", "build", "--release", "-p", "agent-sandbox-router", "--example", "sandbox_router"],
                       cwd=ROOT, check=True)
        options.router = [str(ROOT / "target/release/examples/sandbox_router"), "serve"]
        mint = [str(ROOT / "target/release/examples/sandbox_router"), "mint"]
    with tempfile.TemporaryDirectory(prefix="router-bench-") as directory:
        bench = Bench(options, Path(directory))
        bench.token = subprocess.run([*mint, "box", "--secret-file", f"{directory}/secret"], capture_output=True, text=True,
                                     check=True).stdout.strip()
        try:
            bench.start()
            report(bench)
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
