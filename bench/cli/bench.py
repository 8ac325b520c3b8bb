"""Start-up times: `run` compared with other tools, `up` until ready, and time to interactive of sandboxes, cold and warm."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

POOL = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {{name: bench, namespace: default}}
spec: {{replicas: {size}, sandboxTemplateRef: {{name: python-sandbox-template}}}}
"""


def timed(command, rounds):
    """Seconds of each round; a command that fails once is left out of the table."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        times.append(time.perf_counter() - start)
        if done.returncode != 0:
            return None, done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return times[1:], None


def row(name, times, note=""):
    ordered = sorted(times)
    p50, p99 = statistics.median(ordered) * 1000, ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))] * 1000
    print(f"| {name} | {p50:.1f} | {p99:.1f} | {note} |")


def oci_bundle(folder):
    """The bundle for crun and runc: the host's own programs, read-only, in separate namespaces."""
    (folder / "rootfs").mkdir()
    subprocess.run(["crun" if shutil.which("crun") else "runc", "spec"], cwd=folder, check=True)
    config = json.loads((folder / "config.json").read_text())
    config["process"].update({"terminal": False, "args": ["/bin/true"]})
    config["root"] = {"path": "rootfs", "readonly": True}
    links = []
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "rootfs" / name).symlink_to(f"usr/{name}") if os.path.islink(f"/{name}") else links.append(f"/{name}")
    for path in ["/usr", *links]:
        (folder / "rootfs" / path.strip("/")).mkdir(exist_ok=True)
        config["mounts"].append({"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"]})
    (folder / "config.json").write_text(json.dumps(config))


def run_beside_others(binary, rounds):
    print("\n### One command in a fresh sandbox, from the shell\n\n| tool | p50 ms | p99 ms | isolation |\n|---|---|---|---|")
    tools = [("agent-sandbox run", [binary, "run", "--", "true"], "every namespace, cgroup, overlay, seccomp, Landlock, sandboxd, own engine")]
    bwrap = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
    tools.append(("bwrap", [*bwrap, "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "true"], "namespaces only"))
    with tempfile.TemporaryDirectory() as bundle:
        oci = shutil.which("crun") or shutil.which("runc")
        if oci:
            oci_bundle(pathlib.Path(bundle))
            for name in ("crun", "runc"):
                tools.append((f"{name} run", [name, "run", "--bundle", bundle, f"bench-{name}-{os.getpid()}"], "namespaces, cgroup, seccomp by default profile"))
        rootfs = f"{bundle}/rootfs"
        # podman's default limits exceed those of a shell here; crun does not support hybrid cgroups, so runc is the fallback.
        podman = ["podman", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--volume", "/usr:/usr:ro"]
        for name in ("crun", "runc"):
            command = [*podman, "--runtime", name, "--rootfs", rootfs, "/usr/bin/true"]
            tools.append((f"podman run, over {name}", command, f"as {name}, with podman's own bookkeeping"))
        for name, command, note in tools:
            if not shutil.which(command[0]):
                print(f"| {name} | – | – | not installed |")
                continue
            times, why = timed(command, rounds)
            row(name, times, note) if times else print(f"| {name} | – | – | fails here: {' '.join(why)} |")


def memory(pid):
    """Proportional set size in MB: the memory of the process itself."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) / 1024


def start(binary, folder, warm):
    """Starts an engine; returns the process and the seconds until it reports that it is ready."""
    command = [binary, "--data-dir", folder, "up", "--warm", str(warm), "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0"]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout.readline().startswith("ready"), "the engine starts"
    return process, time.perf_counter() - begun


def stop(binary, folder, process):
    process.send_signal(signal.SIGINT)
    process.wait(60)
    subprocess.run([binary, "--data-dir", folder, "down", "--purge", "--yes"], check=True, stdout=subprocess.DEVNULL)


def up_until_ready(binary, rounds):
    print("\n### `up` until ready\n\n| | p50 ms | max ms | target |\n|---|---|---|---|")
    first, again, sizes = [], [], []
    for _ in range(rounds):
        folder = tempfile.mkdtemp(prefix="agent-sandbox-bench-") + "/data"
        process, took = start(binary, folder, 2)
        first.append(took)
        time.sleep(1)
        sizes.append(memory(process.pid))
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process, took = start(binary, folder, 2)
        again.append(took)
        stop(binary, folder, process)
        shutil.rmtree(os.path.dirname(folder), ignore_errors=True)
    for name, times in (("new folder", first), ("the same folder again", again)):
        print(f"| {name} | {statistics.median(times) * 1000:.0f} | {max(times) * 1000:.0f} | ≤ 100 |")
    print(f"| memory a second later, MB (Pss) | {statistics.median(sizes):.1f} | {max(sizes):.1f} | ≤ 40 |")


def wait_warm(kubectl, size):
    deadline = time.monotonic() + 120
    while True:
        found = subprocess.run([*kubectl, "get", "sandboxwarmpool", "bench", "-o", "jsonpath={.status.readyReplicas}"], capture_output=True, text=True)
        if found.stdout == str(size):
            return
        assert time.monotonic() < deadline, f"the pool has {found.stdout or 0} of {size}: {found.stderr}"
        time.sleep(0.1)


def measure(binary, client, mode, concurrency, count):
    """The client's measurements of one separate engine; a string when something failed."""
    folder = tempfile.mkdtemp(prefix="agent-sandbox-bench-") + "/data"
    process, _ = start(binary, folder, 0)
    try:
        kubeconfig = f"{folder}/kubeconfig"
        router = json.loads(pathlib.Path(folder, "up.json").read_text())["router"]
        if mode == "warm":
            kubectl = ["kubectl", "--kubeconfig", kubeconfig]
            # Half as large again as the burst: a pool that runs low refills immediately, which would compete with the claims.
            size = count * 3 // 2 if concurrency > 1 else 10
            subprocess.run([*kubectl, "apply", "-f", "-"], input=POOL.format(size=size), text=True, check=True, stdout=subprocess.DEVNULL)
            wait_warm(kubectl, size)
        done = subprocess.run([client, kubeconfig, router, mode, str(concurrency), str(count)], capture_output=True, text=True, timeout=240)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[0]
    finally:
        stop(binary, folder, process)
        shutil.rmtree(os.path.dirname(folder), ignore_errors=True)


def interactive(binary, client, plan, passes):
    print(f"\n### Time to interactive: the API call until `/bin/true` by argv has finished (medians of {passes} passes)\n")
    print("| | at a time | count | p50 ms | p99 ms | per second (lowest, highest) | of it: created, ready (p50 ms) | target |\n|---|---|---|---|---|---|---|---|")
    targets = {("cold", 1): "p50 ≤ 15 ms", ("warm", 1): "p50 ≤ 8 ms"}
    seen = {row: [] for row in plan}
    # Every pass measures everything, so that a temporarily slow machine does not affect only one row.
    for _ in range(passes):
        for row in plan:
            seen[row].append(measure(binary, client, *row))
    for (mode, concurrency, count), found in seen.items():
        target = targets.get((mode, concurrency), f"≥ {200 if mode == 'cold' else 500}/s, none fails")
        failed = [text for text in found if isinstance(text, str)]
        if failed:
            print(f"| {mode} | {concurrency} | {count} | failed: {failed[0]} | | | | {target} |")
            continue
        middle = {name: statistics.median(one[name] for one in found) for name in ("p50", "p99", "perSecond", "createdP50", "readyP50")}
        rates = sorted(one["perSecond"] for one in found)
        print(
            f"| {mode} | {concurrency} | {count} | {middle['p50']:.1f} | {middle['p99']:.1f} | {middle['perSecond']:.0f} "
            f"({rates[0]:.0f}, {rates[-1]:.0f}) | {middle['createdP50']:.1f}, {middle['readyP50']:.1f} | {target} |"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3, help="how often time to interactive is measured; medians count")
    parser.add_argument("--only", choices=["run", "up", "tti"])
    args = parser.parse_args()
    if args.only in (None, "run"):
        run_beside_others(args.binary, args.rounds)
    if args.only in (None, "up"):
        up_until_ready(args.binary, max(3, args.rounds // 4))
    if args.only in (None, "tti"):
        cold = [("cold", 1, 40), ("cold", 10, 200), ("cold", 50, 300)]
        interactive(args.binary, args.client, cold + [("warm", 1, 40), ("warm", 10, 200), ("warm", 50, 300)], args.passes)


if __name__ == "__main__":
    main()
