"""Restores Python code that lost its formatting when a page was copied out of a browser. The code is not changed otherwise.

1. quotes       typographic quotes become ASCII quotes
2. cut at prose a sentence that follows a statement without a space, and output shown after it, are removed
3. line breaks  statements that were joined with spaces get a line each
4. indentation  bodies of `try`, `finally`, `async def` and `async with` are indented again
"""

import re

QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
INDENT = "    "
# A closing bracket followed by a capital letter: there the next paragraph of the page begins.
GLUED = re.compile(r"\)(?=[A-Z])")
# Prefixes of lines that end every open body.
OUTERMOST = ("asyncio.run(", "import ", "from ")


def straighten_quotes(text):
    return text.translate(QUOTES)


def cut_at_prose(line):
    """The code on a line, and whether prose followed it."""
    found = GLUED.search(line)
    return (line[: found.end()], True) if found else (line, False)


def break_lines(text):
    """Splits joined statements: after every outermost closing bracket that is followed by a space and a word."""
    lines, current, depth, quote = [], "", 0, None
    for at, letter in enumerate(text):
        current += letter
        if quote:
            quote = None if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0 and re.match(r" [\w\[]", text[at + 1 :]):
                lines.append(current.strip())
                current = ""
    lines.append(current.strip())
    # A list on a line of its own is output that the page shows.
    return "\n".join(line for line in lines if line and not line.startswith("["))


def indent(lines):
    """Restores the indentation of bodies. Lines inside brackets are left as they are."""
    out, level, depth, tries = [], 0, 0, []
    for line in lines:
        line = line.strip()
        if depth == 0:
            if line.startswith(OUTERMOST):
                level, tries = 0, []
            elif line.startswith(("finally:", "except")) and tries:
                level = tries.pop()
        out.append(INDENT * level + line)
        depth += sum(line.count(letter) for letter in "([{") - sum(line.count(letter) for letter in ")]}")
        if depth == 0 and line.split("#")[0].rstrip().endswith(":") and not line.startswith("#"):
            if line.startswith("try:"):
                tries.append(level)
            level += 1
    return "\n".join(out)
