"""Links of the documentation are valid: the file exists, and the heading exists in it."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^( *)(`{3,}).*?^\1\2 *$", "", text, flags=re.M | re.S))


def anchors(text):
    """The anchors that the site gives to headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", without_code_fences(text), re.M):
        explicit = re.search(r"\{ *#([\w-]+) *\}", heading)
        if explicit:
            found.add(explicit[1])
            continue
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def without_code_fences(text):
    return re.sub(r"^( *)(`{3,}).*?^\1\2 *$", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    broken = []
    for match in LINK.finditer(without_code(page.read_text())):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            broken.append(f"{link}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(f"{link}: no such heading")
    assert not broken, "\n".join(broken)


def test_every_page_of_the_site_is_in_its_table_of_contents():
    contents = (ROOT / "mkdocs.yml").read_text()
    missing = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md") if str(page.relative_to(ROOT / "docs")) not in contents]
    missing += [str(page.relative_to(ROOT)) for page in (ROOT / "examples").rglob("*.md") if str(page.relative_to(ROOT)) not in contents]
    assert not missing, missing
