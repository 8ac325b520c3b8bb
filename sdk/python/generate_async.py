"""Generates the asynchronous modules from the synchronous ones: `python generate_async.py [--check]`.

Markers at the end of a line control the conversion: `# async` makes a definition asynchronous, `# await` awaits the
call on the line. `_wait(` becomes `await _aio(`.
"""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parent / "python"
MODERN = ["Client", "Sandbox", "EventStream", "Process", "Chunks", "Changes", "Files"]
DROP_IN = ["SandboxClient", "Sandbox", "SandboxConnector", "K8sHelper", "CommandExecutor", "Filesystem"]
DROP_IN_MODULES = ["sandbox_client", "sandbox", "connector", "k8s_helper", "command_executor", "filesystem"]
SPECIAL = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__next__": "__anext__",
    "__iter__": "__aiter__",
    "StopIteration": "StopAsyncIteration",
    "@trace_span": "@async_trace_span",
    "import _wait": "import _aio",
    "_wait(": "await _aio(",
    "cleanup: bool = False": "cleanup: bool = True",
    'raise TypeError("An asynchronous destination needs the asynchronous client.")': "count = await count",
}


def to_async(source, classes):
    lines = source.splitlines()
    for index, line in enumerate(lines):
        if line.rstrip().endswith("# async"):
            # A definition may span lines: its `def` is the nearest one above.
            at = next(at for at in range(index, -1, -1) if re.match(r"\s*def ", lines[at]))
            lines[at] = lines[at].replace("def ", "async def ", 1)
            lines[index] = re.sub(r"\s*# async$", "", lines[index])
        elif line.rstrip().endswith("# await"):
            line = re.sub(r"\s*# await$", "", line)
            # The call is what follows `or`, else `=` or `return`, else the whole statement.
            found = re.search(r"^(.* or )(self\..*)$", line) or re.search(
                r"^(.*?(?:= |return ))?\s*((?:self|sandbox|existing)\..*)$", line
            )
            lines[index] = line[: found.start(2)] + "await " + found.group(2)
    text = "\n".join(lines) + "\n"
    for name, other in SPECIAL.items():
        text = text.replace(name, other)
    text = re.sub(r"(import .*)\btrace_span\b", r"\1async_trace_span", text)
    for name in classes:
        # Class names in messages are kept: "Sandbox object", "Sandbox claim", "Sandbox 'name'".
        text = re.sub(rf"(?<![\w.]){name}\b(?! object| claim| ')", f"Async{name}", text)
    if classes is DROP_IN:
        for name in DROP_IN_MODULES:
            text = re.sub(rf"(?<=[. ])(\.*){name}(?= import)", rf"\1async_{name}", text)
    head = '"""Generated from the synchronous module by `generate_async.py`; do not edit."""'
    return head + text[text.index('"""', 3) + 3 :]


def pairs():
    yield FOLDER / "agent_sandbox" / "_sync.py", FOLDER / "agent_sandbox" / "_async.py", MODERN
    drop_in = FOLDER / "k8s_agent_sandbox"
    for name in DROP_IN_MODULES:
        source = next(drop_in.rglob(f"{name}.py"))
        yield source, source.with_name(f"async_{name}.py"), DROP_IN


def main():
    for source, target, classes in pairs():
        generated = to_async(source.read_text(), classes)
        if "--check" in sys.argv:
            if not target.exists() or target.read_text() != generated:
                sys.exit(f"{target} is out of date; run `python sdk/python/generate_async.py`")
            continue
        target.write_text(generated)


if __name__ == "__main__":
    main()
