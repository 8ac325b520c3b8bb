"""A coding agent of others, unmodified: PyPI's aider-chat works on a copy of a repository in a sandbox without a network.

Its model is a server of this test, on the sandbox's own loopback. `scripts/test` installs aider into an environment of
its own, because it pins its dependencies, and names that environment's Python in AGENT_SANDBOX_AIDER.
"""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BINARY
from which_sdk import OURS

if not OURS:
    pytest.skip("once is enough: no SDK is used", allow_module_level=True)
AIDER = os.environ.get("AGENT_SANDBOX_AIDER")
if not AIDER:
    assert not os.environ.get("CI"), "AGENT_SANDBOX_AIDER must name the Python of an environment with aider-chat"
    pytest.skip("AGENT_SANDBOX_AIDER does not name a Python with aider-chat", allow_module_level=True)

WRONG = "def add(a, b):\n    return a - b\n"
TESTS = """import unittest

from calc import add


class Sums(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(2, 3), 5)
"""

# Serves OpenAI's chat API, and runs the command that it is given meanwhile. The first edit multiplies, which the
# repository's test refuses; the second is right. Answers depend on what aider sends: the file as it is in the
# repository, and what the failed test printed.
MODEL = '''
import http.server, json, os, subprocess, sys, threading

def answer(messages):
    last = str(messages[-1]["content"])
    if "commit message" in str(messages[0]["content"]).lower():
        return "fix: add instead of subtracting"
    if "AssertionError: 6 != 5" in last:
        return "calc.py\\n```\\ndef add(a, b):\\n    return a + b\\n```\\n"
    if any("return a - b" in str(message["content"]) for message in messages):
        return "calc.py\\n```\\ndef add(a, b):\\n    return a * b\\n```\\n"
    return "I see neither the file nor a failed test."

class Model(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = answer(body["messages"])
        base = {"id": "1", "created": 1, "model": body["model"]}
        self.send_response(200)
        if body.get("stream"):
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            deltas = [({"role": "assistant", "content": line}, None) for line in text.splitlines(True)] + [({}, "stop")]
            for delta, end in deltas:
                choices = [{"index": 0, "delta": delta, "finish_reason": end}]
                chunk = {**base, "object": "chat.completion.chunk", "choices": choices}
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
            self.wfile.write(b"data: [DONE]\\n\\n")
            return
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        reply = json.dumps({**base, "object": "chat.completion", "choices": choices, "usage": usage}).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
own = {"OPENAI_API_BASE": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "none"}
sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **own}).returncode)
'''


def git(repository, *words):
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    done = subprocess.run(("git", *identity, *words), cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "calc.py").write_text(WRONG)
    (repository / "test_calc.py").write_text(TESTS)
    (repository / ".gitignore").write_text(".aider*\n__pycache__\n")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "config", "user.name", "Tester")
    git(repository, "config", "user.email", "tester@example.org")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    return repository


def python_in_sandbox():
    """A Python with aider's packages in a sandbox: flags that mount it, and its path there.

    The folders may lie below a home folder, which is closed in the sandbox, so they are mounted elsewhere.
    """
    code = "import sys, sysconfig; print(sys._base_executable, sys.base_prefix, sysconfig.get_path('purelib'), sep='\\n')"
    found = subprocess.run((AIDER, "-c", code), capture_output=True, text=True, check=True).stdout.split("\n")
    program, base, packages = (pathlib.Path(path).resolve() for path in found[:3])
    flags = ["--volume", f"{packages}:/mnt/packages:ro", "--env", "PYTHONPATH=/mnt/packages"]
    if base == pathlib.Path("/usr"):
        return flags, str(program)
    flags += ["--volume", f"{base}:/mnt/python:ro", "--env", "LD_LIBRARY_PATH=/mnt/python/lib"]
    return flags, f"/mnt/python/{program.relative_to(base)}"


def test_aider_edits_tests_and_commits_in_a_copy_of_a_repository(repository, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.py").write_text(MODEL)
    for folder in (tmp_path, model):
        folder.chmod(0o755)
    data = tmp_path / "data"

    def cli(*words):
        environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        command = [BINARY, "--data-dir", str(data), *words]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, env=environment)

    flags, python = python_in_sandbox()
    aider = [
        *(python, "/mnt/model/model.py"),
        *(python, "-m", "aider", "--model", "openai/fake", "--yes-always", "--auto-test"),
        *("--test-cmd", f"{python} -m unittest -q", "--message", "add must add", "calc.py"),
    ]
    ran = cli("run", "--here", *flags, "--volume", f"{model}:/mnt/model:ro", "--", *aider)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Applied edit to calc.py" in ran.stdout and "6 != 5" in ran.stdout, ran.stdout + ran.stderr
    assert (repository / "calc.py").read_text() == WRONG, "the repository itself is unchanged"
    assert git(repository, "log", "--format=%s") == "first\n"

    shown = cli("changes", "diff")
    assert "-    return a - b\n+    return a + b\n" in shown.stdout, shown.stdout + shown.stderr
    applied = cli("changes", "apply")
    assert applied.returncode == 0, applied.stderr
    assert (repository / "calc.py").read_text() == WRONG.replace("-", "+")
    fix = "fix: add instead of subtracting"
    assert git(repository, "log", "--format=%s").splitlines() == [fix, fix, "first"]
    assert git(repository, "status", "--porcelain") == ""
    checked = subprocess.run((sys.executable, "-m", "unittest", "-q"), cwd=repository, capture_output=True)
    assert checked.returncode == 0, checked.stderr
