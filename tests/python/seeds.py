"""Python snippets of the documents that the product comes from, as they stand there.

The documents lie beside the project (`../shared/seeds`) where it is developed; a plain clone has none, and tests that want them skip.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "seeds"
FOOTER = "Last modified"


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
    """Prose of one word parses too: code calls, assigns or imports something."""
    return parses(text) and any(
        isinstance(node, (ast.Call, ast.Assign, ast.Import, ast.ImportFrom)) for node in ast.walk(ast.parse(text))
    )


def snippets(text):
    """Runs of code paragraphs; each import of the SDK starts a new one."""
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
