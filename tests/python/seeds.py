"""Python snippets of the documents that the product comes from.

The documents are beside the project (`../shared/seeds`) where it is developed; a plain clone has none, and tests that
need them are skipped. Documents 000, 001 and 004 are used unchanged, 002 and 003 after the steps that `restore_code.py`
lists.
"""

import ast
import pathlib
import re

import restore_code

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "seeds"
FOOTER = "Last modified"
STARTS = ("from k8s_agent_sandbox", "import asyncio")


def document(prefix):
    """The text of the document whose file name starts with `prefix`, or None."""
    found = sorted(FOLDER.glob(f"{prefix}_*.txt"))
    return found[0].read_text() if found else None


def parses(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def looks_like_code(text):
    """Whether a text is code. A single word of prose parses too, so code must also call, assign or import something."""
    return parses(text) and any(
        isinstance(node, (ast.Call, ast.Assign, ast.Import, ast.ImportFrom)) for node in ast.walk(ast.parse(text))
    )


def snippets(text):
    """Consecutive code paragraphs; each import of the SDK starts a new snippet. For pages that kept their formatting."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if not line.startswith(FOOTER)]
        paragraphs.append("\n".join(lines))
    found, at = [], 0
    while at < len(paragraphs):
        # A blank line inside a string or a block splits one statement over several paragraphs.
        for end in range(at + 1, min(at + 6, len(paragraphs)) + 1):
            joined = "\n\n".join(paragraphs[at:end])
            if looks_like_code(joined):
                if "import SandboxClient" in joined or not found:
                    found.append(joined)
                else:
                    found[-1] += "\n\n" + joined
                at = end
                break
        else:
            at += 1
    return found


def examples(text):
    """The examples of the reference page (002): (what is explained, code), one per `Example:`."""
    lines, found, section = text.splitlines(), [], ""
    for at, line in enumerate(lines):
        if line.startswith("def "):
            section = re.match(r"def (\w+)", line).group(1)
        if line.strip() == "Example:":
            found.append((section, restore_code.break_lines(restore_code.straighten_quotes(lines[at + 1]))))
    return found


def modes(text):
    """The programs of the client's own page (003), one per way to connect, in the page's order."""
    lines, found, at = text.splitlines(), [], 0
    while at < len(lines):
        if not lines[at].startswith(STARTS):
            at += 1
            continue
        program = []
        while at < len(lines):
            line, ended = restore_code.cut_at_prose(restore_code.straighten_quotes(lines[at]))
            program.append(line)
            at += 1
            if ended:
                break
        found.append(restore_code.indent(program))
    return found


def manifests(text):
    """The manifests of a page (004): runs of YAML lines that begin with `apiVersion`, documents of one run together."""
    found, current = [], []
    for line in [*text.splitlines(), ""]:
        yaml = re.match(r"(apiVersion|kind|metadata|spec):|  +\S|---$|# ", line)
        if current and not yaml:
            found.append("\n".join(current) + "\n")
            current = []
        elif yaml and (current or line.startswith("apiVersion:")):
            current.append(line)
    return found


def client_program(text):
    """The Python program of the summary page (004), for the package of that name."""
    start = text.index("from agentic_sandbox_client")
    return text[start : text.index("\n\n", text.index("sandbox.delete()") - 1)].strip() + "\n"
