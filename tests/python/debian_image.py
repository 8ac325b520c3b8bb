"""Builds an image with Python, with Debian's own tools, from the packages installed on this machine: nothing is downloaded."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# The links of a merged /usr, which no package has.
MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
ROOTS = ("python3-minimal", "dash", "coreutils")


def missing():
    """Why no image can be built here, or None."""
    if not shutil.which("dpkg-query"):
        return "dpkg is not installed: the image is made of Debian's packages"
    asked = subprocess.run(["dpkg-query", "-W", *ROOTS], capture_output=True, text=True)
    return asked.stderr.strip() or None


def plain(name):
    """Without version and architecture."""
    return re.split(r"[ :(]", name.strip())[0]


def packages():
    """The root packages and all their dependencies."""
    form = "${binary:Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    needs, provider = {}, {}
    for line in listed.splitlines():
        package, provides, depends = line.split("\t")
        needs[package] = depends
        for name in [package, *provides.split(",")]:
            provider.setdefault(plain(name), package)
    found, waiting = set(), [provider[root] for root in ROOTS]
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        for alternatives in needs[package].split(","):
            names = filter(None, map(plain, alternatives.split("|")))
            waiting.extend([provider[name] for name in names if name in provider][:1])
    return sorted(found)


def files():
    listed = subprocess.run(["dpkg", "-L", *packages()], capture_output=True, text=True, check=True).stdout
    unneeded = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/lintian/")
    return sorted({os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path)
                   for path in listed.splitlines() if path.startswith("/") and path != "/." and not path.startswith(unneeded)})


def layer():
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in files():
            if os.path.lexists(path) and path.strip("/") not in MERGED:
                archive.add(path, recursive=False)
        for name, target in {**MERGED, "usr/bin/python": "python3"}.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name in ("tmp", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
    return raw.getvalue()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def save(destination, name):
    """An OCI layout as a tar, as `agent-sandbox image import` reads it."""
    machine = MACHINES[os.uname().machine]
    tar = layer()
    config = json.dumps({
        "architecture": machine, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        "config": {"Cmd": ["python3"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
    }).encode()

    def blob(kind, content):
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(content), "size": len(content)}

    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", config), "layers": [blob("layer.v1.tar", tar)],
    }).encode()
    entry = {**blob("manifest.v1+json", manifest), "annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    with tarfile.open(destination, "w") as archive:
        blobs = {f"blobs/sha256/{digest(content)[7:]}": content for content in (tar, config, manifest)}
        whole = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
        for path, content in whole.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
