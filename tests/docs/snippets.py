"""Finds the snippets of a page: what to run, what to expect, and what is marked as not run.

A fenced block means, by its language:

* ``console``  lines that begin with ``$ `` are commands, the rest is their output; ``...`` stands for anything;
* ``sh``       a script that must succeed;
* ``python``   a program that must succeed;
* ``yaml``, ``toml``, ``json`` with ``title="NAME"``  a file that later snippets use;
* ``yaml`` without a title  Kubernetes objects that the API must accept;
* ``text`` or nothing  a picture or a quotation, not a snippet.

A block whose title begins with ``Not run:`` is shown but not run; the title says why. Their number is limited.
"""

import dataclasses
import pathlib
import re

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)$")
NOT_RUN = "Not run:"
RUN = {"console", "sh", "python", "yaml", "toml", "json", "go", "rust"}


@dataclasses.dataclass
class Snippet:
    page: pathlib.Path
    line: int
    language: str
    title: str
    text: str

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    @property
    def marked(self):
        return self.title.startswith(NOT_RUN)


def front_matter(text):
    """The page's settings: `key: value` lines between the first two `---`."""
    if not text.startswith("---\n"):
        return {}
    head = text[4:].split("\n---\n", 1)[0]
    return dict((part.strip() for part in line.split(":", 1)) for line in head.splitlines() if ":" in line)


def snippets(page, text=None):
    """All code blocks of a page that are executable."""
    found, block = [], None
    for number, line in enumerate((text if text is not None else page.read_text()).splitlines(), 1):
        fence = FENCE.match(line)
        if block is None and fence:
            info = fence["info"].strip()
            language, _, rest = info.partition(" ")
            title = re.search(r'title="([^"]*)"', rest)
            block = Snippet(page, number, language, title[1] if title else "", "")
            closing, indent, lines = fence["ticks"], len(fence["indent"]), []
        elif block is not None and fence and fence["ticks"] == closing and not fence["info"].strip():
            block.text = "\n".join(lines) + "\n"
            if block.language in RUN:
                found.append(block)
            block = None
        elif block is not None:
            lines.append(line[indent:] if line[:indent].isspace() or not indent else line)
    if block is not None:
        raise ValueError(f"{block.where}: the block is not closed")
    return found


def console_steps(text):
    """Splits a console block into (command, expected output) pairs. A command may go on after a backslash or inside a here-document."""
    steps, lines = [], text.splitlines()
    index = 0
    while index < len(lines):
        if not lines[index].startswith("$ "):
            raise ValueError(f"a console block begins with `$ `, not with {lines[index]!r}")
        command = [lines[index][2:]]
        index += 1
        while index < len(lines) and (command[-1].endswith("\\") or lines[index].startswith("> ")):
            command.append(lines[index].removeprefix("> "))
            index += 1
        output = []
        while index < len(lines) and not lines[index].startswith("$ "):
            output.append(lines[index])
            index += 1
        steps.append(("\n".join(command), "\n".join(output)))
    return steps


def matches(expected, actual):
    """Whether an output is the expected one. Runs of spaces count as one, `...` matches anything, a line of its own any number of lines."""
    def pattern(line):
        return r"[^\n]*".join(re.escape(re.sub(r"\s+", " ", part)) for part in re.split(r" *\.\.\. *", line))

    text = "\n".join(re.sub(r"\s+", " ", line).strip() for line in actual.strip().splitlines())
    parts = []
    for line in expected.strip().splitlines():
        parts.append(r"(?:[^\n]*\n)*?" if line.strip() == "..." else pattern(line.strip()) + r"\n")
    return re.fullmatch("".join(parts), text + "\n" if text else "") is not None
