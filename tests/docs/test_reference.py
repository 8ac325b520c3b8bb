"""The committed reference pages are what the product says about itself now."""

import re

import pytest

import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_current(name):
    current = (reference.DESTINATION / name).read_text()
    assert current == reference.PAGES[name](), f"docs/reference/{name} is out of date: run `make generate`"


def test_every_event_of_the_controller_is_listed():
    said = set()
    for file in (reference.ROOT / "crates/controller/src").rglob("*.rs"):
        if "tests" not in file.parts and file.name not in ("tests.rs", "rig.rs"):
            said |= set(re.findall(r'self\.event\(\s*\S+,\s*"([A-Z]\w+)"', file.read_text()))
    assert said, "the pattern finds nothing any more"
    assert said <= set(reference.EVENTS), said - set(reference.EVENTS)
