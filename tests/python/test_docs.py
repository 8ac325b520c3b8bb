"""The programs on the Python SDK's page run as they stand there."""

import pathlib
import re
import subprocess
import sys

import pytest
from which_sdk import OURS

if not OURS:
    pytest.skip("the page is about our SDK", allow_module_level=True)

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
PROGRAMS = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_reference_is_up_to_date():
    check = [sys.executable, str(PAGE.parents[1] / "sdk" / "reference.py"), "--check"]
    assert subprocess.run(check, capture_output=True, timeout=60).returncode == 0, "make generate"


def test_the_page_has_programs():
    assert len(PROGRAMS) >= 6


@pytest.mark.parametrize("code", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_page(engine, monkeypatch, code):
    monkeypatch.setenv("KUBECONFIG", str(engine.kubeconfig))
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own code
