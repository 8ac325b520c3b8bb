"""Compares our Python SDK with the published one, in one run, against one engine, and prints a table.

`bench.py OURS PUBLISHED [SECTION...]`: two Python programs, one with our wheel, one with k8s-agent-sandbox. Ratios count, not times.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARY = os.environ.get("AGENT_SANDBOX_BIN", str(ROOT / "target" / "release" / "agent-sandbox"))
PEER = "1.0.8"
# Timeout for one measurement, in seconds.
LIMIT = 120
# Each has a best run of its own.
SPEEDS = ("up", "down")
SECTIONS = ("import", "first", "commands", "transfer", "parallel")


class Bench:
    def __init__(self, ours, published, environment):
        self.pythons = {"ours": ours, PEER: published}
        self.environment = environment
        self.rows = []

    def measure(self, who, *what, times=1):
        """The best of several runs, which other load disturbed least."""
        best = None
        for _ in range(times):
            command = [self.pythons[who], str(HERE / "work.py"), *what]
            try:
                finished = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
            except subprocess.TimeoutExpired:
                print(f"{who} {what}: no result after {LIMIT} s", file=sys.stderr)
                return None
            if finished.returncode:
                print(f"{who} {what}: {finished.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                return None
            result = json.loads(finished.stdout.splitlines()[-1])
            if best is None:
                best = result
            elif "seconds" in result:
                best = min(best, result, key=lambda one: one["seconds"])
            else:
                best = {key: max(best[key], speed) if key in SPEEDS else best[key] for key, speed in result.items()}
        return best

    def row(self, name, ours, published, target, unit, higher=False):
        if ours is None or published is None:
            self.rows.append((name, "failed", "failed", "", target))
            return
        ratio = ours / published if published else float("inf")
        word = f"{ratio:.2f}×"
        self.rows.append((name, f"{ours:.4g} {unit}", f"{published:.4g} {unit}", word, target))

    def import_(self):
        base = self.measure("ours", "imported", "nothing", times=5)
        peer = self.measure(PEER, "imported", "k8s_agent_sandbox", times=5)
        for package, time_target, memory_target in (("agent_sandbox", "≤ 0.20×", "≤ 0.33×"), ("k8s_agent_sandbox", "≤ 0.50×", "≤ 0.70×")):
            mine = self.measure("ours", "imported", package, times=5)
            self.row(f"import {package}", mine["seconds"] * 1000, peer["seconds"] * 1000, time_target, "ms")
            self.row("  peak memory of the process", mine["megabytes"], peer["megabytes"], memory_target, "MB")
        self.rows.append(("  (an empty Python)", f"{base['megabytes']:.1f} MB", "", "", ""))

    def run(self, sections):
        for section in sections or SECTIONS:
            getattr(self, {"import": "import_"}.get(section, section))()

    def first(self):
        for mode in ("direct", "tunnel"):
            mine, peer = self.measure("ours", "first", mode), self.measure(PEER, "first", mode)
            self.row(f"create → first result, {mode}", value(mine, "seconds", 1000), value(peer, "seconds", 1000), "", "ms")

    def commands(self):
        floor = self.measure("ours", "floor", "direct", times=2)
        mine, peer = self.measure("ours", "commands", "direct", times=2), self.measure(PEER, "commands", "direct", times=2)
        native = self.measure("ours", "native_commands", "direct", times=2)
        self.row("small command, direct", value(mine, "seconds", 1000), value(peer, "seconds", 1000), "", "ms")
        if floor and mine and peer and native:
            over = lambda one: (one["seconds"] - floor["seconds"]) * 1000  # noqa: E731
            self.row("  over a bare socket", over(mine), over(peer), "≤ 0.33×", "ms")
            self.row("  processor time of the client", mine["cpu"] * 1000, peer["cpu"] * 1000, "", "ms")
            self.row("  agent_sandbox, over a bare socket", over(native), over(peer), "≤ 0.33×", "ms")

    def transfer(self):
        curl = self.curl()
        bare = self.measure("ours", "bare_download", "direct", times=3)
        for mode in ("direct", "tunnel"):
            mine, peer = self.measure("ours", "transfer", mode, times=3), self.measure(PEER, "transfer", mode, times=3)
            self.row(f"download 100 MB, {mode}", value(mine, "down"), value(peer, "down"), "≥ 3×", "MB/s")
            if mode == "direct" and curl and mine:
                self.beside("  download beside curl", mine["down"], curl["down"], "")
                self.beside("  download beside a bare socket", mine["down"], value(bare, "down") or float("nan"), "")
            self.row(f"upload 100 MB, {mode}", value(mine, "up"), value(peer, "up"), "≥ 3×" if mode == "tunnel" else "", "MB/s")
            if mode == "direct" and curl and mine:
                self.beside("  upload beside curl", mine["up"], curl["up"], "≥ 0.80×")
            self.row(f"  memory beyond the content itself, {mode}", value(mine, "extra"), value(peer, "extra"), "", "MB")

    def beside(self, name, mine, other, target):
        self.rows.append((name, f"{mine:.4g} MB/s", f"{other:.4g} MB/s", f"{mine / other:.2f}×", target))

    def parallel(self):
        mine, peer = self.measure("ours", "parallel", "direct"), self.measure(PEER, "parallel", "direct")
        self.row("50 sandboxes at once", value(mine, "seconds"), value(peer, "seconds"), "", "s")
        self.row("  peak memory of the process", value(mine, "megabytes"), value(peer, "megabytes"), "", "MB")
        for who, result in (("ours", mine), (PEER, peer)):
            if result and result["failed"]:
                self.rows.append((f"  failures, {who}", str(result["failed"]), "", "", "0"))

    def curl(self):
        """The speeds of curl with the same requests to the same kind of sandbox, best of three: an upload, and a discarded download."""
        keeper = subprocess.Popen(
            [self.pythons["ours"], str(HERE / "work.py"), "sandbox_for_curl"],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        try:
            name = keeper.stdout.readline().strip()
            command = ["curl", "-sf", "-o", "/dev/null", "-H", "Expect:", "-H", f"X-Sandbox-ID: {name}"]
            router = self.environment["BENCH_ROUTER"]

            def best(form, *more):
                runs = [subprocess.run([*command, "-w", form, *more], capture_output=True, text=True, check=True) for _ in range(3)]
                return max(float(run.stdout) for run in runs) / 1e6

            with tempfile.NamedTemporaryFile() as file:
                file.write(os.urandom(1_000_000) * 100)
                file.flush()
                up = best("%{speed_upload}", "-F", f"file=@{file.name};filename=other", f"{router}/upload")
            return {"up": up, "down": best("%{speed_download}", f"{router}/download/big")}
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None
        finally:
            keeper.communicate("")

    def table(self):
        head = ("", "ours", PEER, "ratio", "target")
        widths = [max(len(row[column]) for row in [head, *self.rows]) for column in range(5)]
        for row in [head, *self.rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def value(result, key, factor=1):
    return None if result is None else result[key] * factor


def main():
    ours, published, *sections = sys.argv[1:]
    unknown = set(sections) - set(SECTIONS)
    assert not unknown, f"{unknown}: not among {SECTIONS}"
    folder = tempfile.mkdtemp(prefix="agent-sandbox-bench-")
    os.rmdir(folder)
    command = [BINARY, "--data-dir", folder, "up", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0", "--router-auth", "none"]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        state = pathlib.Path(folder) / "up.json"
        deadline = time.monotonic() + 60
        while not state.exists():
            assert time.monotonic() < deadline, "the engine did not become ready"
            time.sleep(0.02)
        router = json.loads(state.read_text())["router"]
        environment = {**os.environ, "KUBECONFIG": f"{folder}/kubeconfig", "BENCH_ROUTER": router}
        bench = Bench(ours, published, environment)
        try:
            bench.run(sections)
        finally:
            bench.table()
    finally:
        engine.terminate()
        engine.wait(30)
        subprocess.run([BINARY, "--data-dir", folder, "down", "--purge", "--yes"], stdout=subprocess.DEVNULL, timeout=60)


if __name__ == "__main__":
    main()
