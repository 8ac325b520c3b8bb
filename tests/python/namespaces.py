"""A network namespace for tests, connected to the host by a veth pair: a client outside the sandboxes with its own address."""

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading

CLONE_NEWNET = 0x40000000
# Every process uses a few addresses of the benchmarking range 198.18.0.0/15 (RFC 2544), which is not routed: four for
# each of its namespaces.
FIRST = 4 * (os.getpid() % 16000)
NUMBERS = itertools.count()


def missing():
    """Why network namespaces cannot be used here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") else "`ip` is not installed (Debian: apt-get install iproute2)"


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=30)


class Namespace:
    """Context manager: creates the namespace, and removes it with everything in it."""

    def __init__(self):
        number = next(NUMBERS)
        first = FIRST + 4 * number
        self.name = f"sdk{os.getpid()}-{number}"
        self.host, self.address = (f"198.18.{first >> 8}.{(first & 255) + last}" for last in (1, 2))
        self.near = f"{self.name}a"
        self.processes, self.listeners = [], []

    def __enter__(self):
        near, far = self.near, f"{self.name}b"
        ip("netns", "add", self.name)
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
            ip("addr", "add", f"{self.host}/30", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", far)
            for device in ("lo", far):
                ip("-n", self.name, "link", "set", device, "up")
            ip("-n", self.name, "route", "add", "default", "via", self.host)
        except BaseException:
            ip("netns", "del", self.name)
            raise
        return self

    def __exit__(self, *_):
        for listener in self.listeners:
            listener.close()
        for process in self.processes:
            process.terminate()
            process.wait(30)
        ip("link", "del", self.near)
        ip("netns", "del", self.name)

    def start(self, command, **options):
        """Starts a program inside the namespace; it is terminated with the namespace."""
        process = subprocess.Popen(["ip", "netns", "exec", self.name, *command], stdin=subprocess.DEVNULL, **options)
        self.processes.append(process)
        return process

    def forward(self, inside, outside):
        """Forwards connections to an address inside the namespace to an address of the host."""
        listeners = []
        thread = threading.Thread(target=lambda: listeners.append(self._listen(inside)))
        thread.start()
        thread.join()
        self.listeners.extend(listeners)
        threading.Thread(target=forward_connections, args=(listeners[0], outside), daemon=True).start()

    def _listen(self, address):
        """Creates a socket inside the namespace. It must run in a thread of its own, whose namespace it changes."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.name}") as inside:
            if libc.setns(inside.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
        return socket.create_server(address)


def forward_connections(listener, target):
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection(target)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=copy_bytes, args=(source, sink), daemon=True).start()


def copy_bytes(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
