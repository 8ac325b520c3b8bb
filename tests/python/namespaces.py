"""A network namespace of the test's own, joined to the host by a cable: a place outside the sandboxes with an address of its own."""

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading

CLONE_NEWNET = 0x40000000
# Of a range that nobody routes (RFC 2544) every process takes a few addresses, four for each of its namespaces.
FIRST = 4 * (os.getpid() % 16000)
NUMBERS = itertools.count()


def missing():
    """Why there can be none here, if there can be none."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") else "`ip` is not installed (Debian: apt-get install iproute2)"


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=30)


class Namespace:
    """Made when entered, gone with everything in it when left."""

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
        """A program inside, which ends with the namespace."""
        process = subprocess.Popen(["ip", "netns", "exec", self.name, *command], stdin=subprocess.DEVNULL, **options)
        self.processes.append(process)
        return process

    def lead(self, inside, outside):
        """Connections to an address inside come out at one of the host's."""
        made = []
        thread = threading.Thread(target=lambda: made.append(self._listen(inside)))
        thread.start()
        thread.join()
        self.listeners.append(made[0])
        threading.Thread(target=pass_all_on, args=(made[0], outside), daemon=True).start()

    def _listen(self, address):
        """A socket belongs to the namespace of the thread that makes it; the thread ends with that."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.name}") as inside:
            if libc.setns(inside.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
        return socket.create_server(address)


def pass_all_on(listener, target):
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = socket.create_connection(target)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()


def pass_on(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
