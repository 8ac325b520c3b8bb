"""A shell session that keeps its variables from snippet to snippet, with its own folder and data."""

import os
import pathlib
import secrets
import select
import signal
import subprocess
import time


class SnippetFailed(AssertionError):
    pass


class Session:
    def __init__(self, folder, environment):
        self.folder = pathlib.Path(folder)
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        os.set_blocking(self.shell.stdout.fileno(), False)

    def run(self, script, seconds=120):
        """Runs a script in the shell; returns its exit status and everything it printed."""
        mark = f"end-of-snippet-{secrets.token_hex(8)}"
        # Standard input is /dev/null: otherwise the script would read the next snippet.
        self.shell.stdin.write(f"{{ {script}\n}} </dev/null\nprintf '\\n%s %d\\n' {mark} $?\n".encode())
        self.shell.stdin.flush()
        deadline, output = time.monotonic() + seconds, b""
        while f"\n{mark} ".encode() not in output or not output.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise SnippetFailed(f"not finished after {seconds} s:\n{script}\n--- printed so far\n{output.decode(errors='replace')}")
            if not select.select([self.shell.stdout], [], [], left)[0]:
                continue
            more = self.shell.stdout.read()
            if more == b"":
                raise SnippetFailed(f"the shell ended:\n{script}\n--- printed\n{output.decode(errors='replace')}")
            output += more or b""
        text, _, status = output.decode(errors="replace").rpartition(f"\n{mark} ")
        return int(status), text

    def expect_success(self, script, seconds=120):
        status, output = self.run(script, seconds)
        if status != 0:
            raise SnippetFailed(f"exit status {status}:\n{script}\n--- printed\n{output}")
        return output

    def close(self):
        """Ends the shell and its background processes."""
        try:
            os.killpg(self.shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.shell.wait(10)
        self.shell.stdin.close()
        self.shell.stdout.close()
