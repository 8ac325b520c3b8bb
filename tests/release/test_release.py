"""The output of `make release` can be installed, verified and run. Built with the quick profile, as this tests the packaging."""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "dist"
    done = subprocess.run([ROOT / "scripts" / "release"], env={**os.environ, "PROFILE": "dev", "DIST": str(folder)}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def empty_home(folder):
    """What a user has who has installed nothing: the system's programs, and no Rust."""
    return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(folder)}


@contextlib.contextmanager
def served(folder):
    """The address of a web server with the files of a folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def install(base, prefix):
    environment = {**empty_home(prefix), "PREFIX": str(prefix), "AGENT_SANDBOX_RELEASE": str(base)}
    return subprocess.run(["sh", ROOT / "scripts" / "install.sh"], env=environment, capture_output=True, text=True, timeout=120)


def test_everything_has_its_checksum(dist):
    listed = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    present = {str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file() and path.name != "SHA256SUMS"}
    assert set(listed) == present
    for name, checksum in listed.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == checksum, name


def test_manifests_have_the_names_of_upstreams_releases(dist):
    """Installation guides download `manifest.yaml` and `extensions.yaml` from beside the archives."""
    for name in ("manifest.yaml", "extensions.yaml"):
        path = dist / name
        assert path.is_file() and not path.is_symlink()
        assert path.read_text() == (ROOT / "deploy" / "manifests" / name).read_text()


def test_the_client_can_be_installed_under_upstreams_name(dist, tmp_path):
    """`pip install agentic-sandbox-client` gives the package `agentic_sandbox_client` of our own wheel."""
    environment = tmp_path / "venv"
    subprocess.run(["python3", "-m", "venv", environment], check=True, timeout=120)
    python = environment / "bin" / "python"
    # Dependencies of the drop-in package come from the index; ours must come from the release.
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--find-links", dist, "agentic-sandbox-client"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    subprocess.run([python, "-c", "import agentic_sandbox_client, k8s_agent_sandbox"], check=True, timeout=60)


def test_installed_from_an_address_it_runs(dist, tmp_path):
    with served(dist) as address:
        done = install(address, tmp_path)
    assert done.returncode == 0, done.stderr
    program = tmp_path / "bin" / "agent-sandbox"
    # Another folder without a sandboxd file: the one binary is a complete installation.
    command = [program, "run", "--", "echo", "works"]
    run = subprocess.run(command, env=empty_home(tmp_path), capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "works\n"), run.stderr
    assert (tmp_path / "share" / "man" / "man1" / "agent-sandbox.1").stat().st_size > 1000


def test_the_wheel_alone_runs_a_sandbox(dist, tmp_path):
    """A home folder, Python and the wheel: no Rust, no engine, no cluster, no kubectl."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    programs = tmp_path / "venv" / "bin"
    with served(dist) as address:
        words = ["install", "--quiet", "--no-index", "--find-links", f"{address}/wheels.html", "agent-sandbox-sdk"]
        subprocess.run([programs / "python", "-m", "pip", *words], check=True, timeout=300)
    environment = {**empty_home(tmp_path), "AGENT_SANDBOX_DATA_DIR": str(tmp_path / "data")}
    run = functools.partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=120)
    first = run([programs / "agent-sandbox", "run", "--", "echo", "works"])
    assert (first.returncode, first.stdout) == (0, "works\n"), first.stderr
    try:
        done = run([programs / "python", "-c", "from agent_sandbox import Sandbox; print(Sandbox().run('echo hi').stdout)"])
        assert (done.returncode, done.stdout) == (0, "hi\n\n"), done.stderr
    finally:
        stopped = run([programs / "agent-sandbox", "down", "--purge", "--yes"])
    assert stopped.returncode == 0, stopped.stderr


def test_the_wheel_is_installed_as_a_tool(dist, tmp_path):
    """The line of the README: uv takes the wheel from an address."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    environment = {**empty_home(tmp_path), "UV_PYTHON_DOWNLOADS": "never"}
    with served(dist) as address:
        words = [uv, "tool", "install", "--no-index", "--find-links", f"{address}/wheels.html", "agent-sandbox-sdk"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    command = [tmp_path / ".local" / "bin" / "agent-sandbox", "run", "--", "echo", "works"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "works\n"), run.stderr


def test_a_changed_archive_is_not_installed(dist, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(dist, changed)
    archive = next(changed.glob("agent-sandbox-*-linux-*.tar.gz"))
    archive.write_bytes(archive.read_bytes() + b"!")
    done = install(changed, tmp_path / "prefix")
    assert done.returncode != 0 and "checksum" in done.stderr and not (tmp_path / "prefix" / "bin").exists(), done.stderr


def test_the_installer_reports_a_missing_release_address(tmp_path):
    done = install(tmp_path / "nothing", tmp_path)
    assert done.returncode != 0 and "there is no" in done.stderr


def test_images_are_whole(dist):
    """Each blob has the digest that refers to it, down from the index."""
    for archive in dist.glob("*.oci.tar"):
        with tarfile.open(archive) as tar:
            blob = lambda entry: tar.extractfile("blobs/sha256/" + entry["digest"].removeprefix("sha256:")).read()
            index = json.load(tar.extractfile("index.json"))
            for reference in index["manifests"]:
                manifest = json.loads(blob(reference))
                for entry in [reference, manifest["config"], *manifest["layers"]]:
                    content = blob(entry)
                    assert "sha256:" + hashlib.sha256(content).hexdigest() == entry["digest"] and len(content) == entry["size"]


def test_the_bill_of_materials_names_what_is_shipped(dist):
    bill = json.loads(next(dist.glob("*.cdx.json")).read_text())
    names = {component["name"] for component in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX" and {"tokio", "rustls", "kube"} <= names
    assert not {"proptest", "insta"} & names, "test dependencies are not shipped"
    assert all(component["licenses"] for component in bill["components"])


def test_documentation_of_several_versions_is_published_together(dist, tmp_path):
    """The newest is shown, the menu knows the others, and a page that is not there finds its style."""
    archive = next(dist.glob("agent-sandbox-*-docs.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="tar")
    folder = tmp_path / "docs"
    newest = json.loads((folder / "versions.json").read_text())[0]["version"]
    shutil.copytree(folder / newest, folder / "0.0.9")
    subprocess.run([ROOT / "scripts" / "docs-versions", newest, folder], check=True, timeout=60)
    menu = json.loads((folder / "versions.json").read_text())
    assert [(entry["version"], entry["aliases"]) for entry in menu] == [(newest, ["latest"]), ("0.0.9", [])]
    assert (folder / "latest" / "index.html").samefile(folder / newest / "index.html")
    missing = (folder / "404.html").read_text()
    for address in re.findall(r'(?:href|src)="/([^"#?]+)"', missing):
        assert (folder / address).exists(), address
