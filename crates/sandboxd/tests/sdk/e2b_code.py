"""Drives the published `e2b-code-interpreter` client, unmodified, against one daemon: `e2b_code.py URL TOKEN`."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

URL, TOKEN = sys.argv[1], sys.argv[2]
os.environ.update(E2B_DEBUG="true", E2B_SANDBOX_URL=URL, E2B_API_KEY="any")
# A file beside this one would hide the package of the same name.
sys.path.pop(0)

from e2b.connection_config import ConnectionConfig  # noqa: E402
from e2b_code_interpreter import NotFoundException, Sandbox, SandboxException, TimeoutException  # noqa: E402
from packaging.version import Version  # noqa: E402

DIRECTORY = "/home/user"


def opened(token):
    return Sandbox(
        sandbox_id="debug_sandbox_id",
        sandbox_domain=None,
        envd_version=Version("0.6.13"),
        envd_access_token=token,
        # The router adds the token where the client sends none: to requests for contexts.
        traffic_access_token=None,
        connection_config=ConnectionConfig(),
    )


def fails(kind, action, *words):
    try:
        action()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def runs(box):
    """E-111 to E-113, E-115, E-116."""
    first = box.run_code("x = 20\nprint('out')\nimport sys\nprint('err', file=sys.stderr)\nx + 1")
    assert (first.text, first.logs.stdout, first.logs.stderr) == ("21", ["out\n"], ["err\n"]), first
    second = box.run_code("x * 2")
    assert (second.text, second.execution_count) == ("40", first.execution_count + 1), second
    failed = box.run_code("def f():\n    return 1 / 0\nf()")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero"), failed
    assert "line 2, in f" in failed.error.traceback and "return 1 / 0" in failed.error.traceback, failed.error.traceback
    assert box.run_code("'quoted'").text == "quoted"
    assert box.run_code("None").results == []
    assert box.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'").text == "awaited"
    assert box.run_code("!echo shell").logs.stdout == ["shell\n"]
    assert box.run_code("import os\nos.system('echo child')").logs.stdout == ["child\n"]
    assert box.run_code("1 +").error.name == "SyntaxError"
    assert box.run_code("input()").error.name == "StdinNotImplementedError"
    rich = box.run_code(
        "class A:\n"
        "    def _repr_html_(self): return '<b>ä</b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "display(A())\n"
        "A()"
    )
    shown, main = rich.results
    assert (shown.html, shown.png, shown.is_main_result) == ("<b>ä</b>", "cG5n", False), shown
    assert main.is_main_result and rich.text == main.text, main
    with_env = box.run_code("import os\nos.environ['ONE_RUN'], os.environ['GREETING']", envs={"ONE_RUN": "1"})
    assert with_env.text == "('1', 'hello')", with_env
    assert box.run_code("'ONE_RUN' in os.environ").text == "False"
    assert box.run_code("import os; os.getcwd()").text == DIRECTORY
    seen = []
    slow = "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.1)"
    box.run_code(slow, on_stdout=lambda message: seen.append(message.line))
    assert "".join(seen) == "0\n1\n2\n", seen
    assert box.run_code("len('x' * 3_000_000)").text == "3000000"
    assert len("".join(box.run_code("print('x' * 3_000_000)").logs.stdout)) == 3_000_001
    died = box.run_code("import os\nos._exit(3)")
    assert died.error.name == "KernelDied", died
    assert box.run_code("'x' in globals()").text == "False", "a new process has no variables"


def interrupted(box):
    """E-117."""
    box.run_code("kept = 1")
    began = time.monotonic()
    fails(TimeoutException, lambda: box.run_code("import time\ntime.sleep(300)", timeout=1))
    again = box.run_code("kept")
    assert again.text == "1", again
    assert time.monotonic() - began < 30


def contexts(box):
    """E-115, E-116, E-118."""
    default = box.list_code_contexts()
    assert [(context.language, context.cwd) for context in default] == [("python", DIRECTORY)], default
    mine = box.create_code_context(cwd="/tmp", language="python")
    assert (mine.language, mine.cwd) == ("python", "/tmp"), mine
    assert {context.id for context in box.list_code_contexts()} == {default[0].id, mine.id}
    assert box.run_code("import os\ny = 5\nos.getcwd()", context=mine).text == "/tmp"
    assert box.run_code("y").error.name == "NameError", "contexts share no variables"
    with ThreadPoolExecutor() as pool:
        started = threading.Event()
        code = "import time\nprint('started')\ntime.sleep(300)"
        running = pool.submit(lambda: box.run_code(code, context=mine, on_stdout=lambda message: started.set()))
        assert started.wait(30)
        box.restart_code_context(mine)
        assert running.result().error.name == "ContextRestarting"
    assert box.run_code("y", context=mine).error.name == "NameError"
    box.remove_code_context(mine)
    fails(NotFoundException, lambda: box.run_code("1", context=mine))
    fails(NotFoundException, lambda: box.remove_code_context(mine))
    fails(Exception, lambda: box.run_code("1", language="r"), "no kernel")


def many(box):
    """E-118: fifty contexts at once, each with variables of its own, and an end to their number."""
    made = [box.create_code_context() for _ in range(50)]
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(box.run_code, f"n = {number}", context=context) for number, context in enumerate(made)]
        assert all(run.result().error is None for run in runs)
        found = [pool.submit(box.run_code, "n", context=context) for context in made]
        assert [run.result().text for run in found] == [str(number) for number in range(50)]
    while len(made) < 100:
        try:
            made.append(box.create_code_context())
        except SandboxException as error:
            assert "429" in str(error) and "contexts already" in str(error), error
            break
    assert 50 < len(made) < 100, len(made)
    for context in made:
        box.remove_code_context(context)
    box.remove_code_context(box.create_code_context())


def main():
    box = opened(TOKEN)
    for part in (runs, interrupted) + (() if TOKEN else (contexts, many)):
        part(box)
        print(part.__name__, "passed")
    if TOKEN:
        fails(Exception, lambda: opened(None).run_code("1"), "token")
    print("passed")


main()
