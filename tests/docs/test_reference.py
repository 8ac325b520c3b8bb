"""The committed reference pages match what the product generates now."""

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
        if "tests" not in file.parts and file.name not in ("tests.rs", "fixture.rs"):
            said |= set(re.findall(r'self\.event\(\s*\S+,\s*"([A-Z]\w+)"', file.read_text()))
    assert said, "the pattern finds nothing any more"
    assert said <= set(reference.EVENTS), said - set(reference.EVENTS)


def test_the_listed_reasons_are_those_that_the_code_writes():
    """The texts that crates/api/src/conditions/tests.rs pins for each case name the reason that the page gives for it."""
    page, tests = reference.conditions(), (reference.ROOT / "crates/api/src/conditions/tests.rs").read_text()
    pinned = re.findall(r"(?:SandboxReady|SandboxSuspended|PodScheduling)::(\w+).*?\(\s*\"\w+\",\s*\"\w+\",\s*\"(\w+)\"", tests, re.S)
    assert ("Finished", "PodFailed") in pinned and ("Suspended", "SandboxSuspended") in pinned, pinned
    for variant, reason in pinned:
        rows = re.findall(rf"^\| {variant} \| (.*?) \|", page, re.M)
        assert any(f"`{reason}`" in row or "the Pod's own" in row for row in rows), (variant, reason, rows)


# What an event's reason looks like at the places that record one, or that name one for them.
SAID_BY_THE_NODE = [
    r'\.record_(?:warning|event)\(\s*"([A-Z]\w+)"',
    r'recorder\s*\.pod\([^;]*?Severity::\w+,\s*"([A-Z]\w+)"',
    r'PodFailure \{\s*reason: "([A-Z]\w+)"',
    r'Self::(?:SharedUid|LimitNotEnforced|StorageMeasuredOnly|NoEgress|SharedUserLimits|OpenToRoot|NoLandlock) => "([A-Z]\w+)"',
    r'Self::MissingProgram \{ \.\. \} => "([A-Z]\w+)"',
    r'const (?:REFUSED|EVICTED|UNSUPPORTED): &str = "([A-Z]\w+)"',
    r'_ => "(FailedCreatePodSandBox)"',
]


def test_every_event_of_the_node_is_listed_and_no_other():
    sources = [file.read_text() for file in (reference.ROOT / "crates/node/src").rglob("*.rs") if "tests" not in file.parts and file.name != "tests.rs"]
    said = {reason for pattern in SAID_BY_THE_NODE for source in sources for reason in re.findall(pattern, source)}
    assert said == set(reference.NODE_EVENTS), said ^ set(reference.NODE_EVENTS)
