"""Writes the reference pages of the SDKs from their sources: `python sdk/reference.py [--check]`.

The Python page is read from the source without importing it. The Go page is the output of `go doc`, and is left
unchanged where Go is not installed.
"""

import ast
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sdk" / "python" / "python" / "agent_sandbox"
PAGES = ROOT / "docs" / "reference"
MODULES = ["_sync.py", "_connections.py", "_results.py", "errors.py"]


def signature(function):
    arguments = ast.unparse(function.args)
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    for prefix in ("self, ", "cls, ", "self", "cls"):
        if arguments.startswith(prefix):
            arguments = arguments[len(prefix) :]
            break
    return f"({arguments}){returned}".replace("|", "\\|")


def of_class(node):
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"\n## {node.name}\n"
    if bases:
        yield f"\nA `{bases}`.\n"
    if ast.get_docstring(node):
        yield f"\n{ast.get_docstring(node)}\n"
    members = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    shown = [item for item in members if item.name == "__init__" or not item.name.startswith("_")]
    if shown:
        yield "\n| member | what it does |\n|---|---|\n"
    for member in shown:
        name = node.name if member.name == "__init__" else member.name
        is_property = any(ast.unparse(decorator) == "property" for decorator in member.decorator_list)
        text = name if is_property else f"{name}{signature(member)}"
        words = " ".join((ast.get_docstring(member) or "").split()).replace("|", "\\|")
        yield f"| `{text}` | {words} |\n"


def python_page():
    page = "<!-- Generated from `sdk/python` by `make generate`; do not edit. -->\n\n# Python SDK: `agent_sandbox`\n\n"
    page += "Every class that waits has an asynchronous counterpart whose methods are awaited: `AsyncClient`, `AsyncSandbox`, and so on.\n"
    for module in MODULES:
        tree = ast.parse((PACKAGE / module).read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                page += "".join(of_class(node))
    return page


def go_page():
    said = subprocess.run(["go", "doc", "-all", "."], cwd=ROOT / "sdk" / "go", capture_output=True, text=True, check=True)
    head = "<!-- Generated from `sdk/go` by `make generate`; do not edit. -->\n\n# Go SDK\n\n"
    return head + "```text\n" + said.stdout + "```\n"


def main():
    pages = {"python.md": python_page()}
    if shutil.which("go") and "--check" not in sys.argv:
        pages["go.md"] = go_page()
    for name, text in pages.items():
        target = PAGES / name
        if "--check" not in sys.argv:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            sys.exit(f"{target} is out of date; run `make generate`")


if __name__ == "__main__":
    main()
