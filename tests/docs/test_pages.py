"""Every command and program of the documentation runs, and prints what the page says it prints."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from session import Session, SnippetFailed
from snippets import console_steps, front_matter, matches, snippets

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("AGENT_SANDBOX_BIN", ROOT / "target" / "debug" / "agent-sandbox"))
# Maximum share of snippets that may be marked as not run.
MOST_MARKED = 0.10

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])
WITH_SNIPPETS = [page for page in PAGES if any(not snippet.marked for snippet in snippets(page))]


def relative(page):
    return str(page.relative_to(ROOT))


def open_session(page, tmp_path, **variables):
    """A shell session for one page: the program on the path, and a copy of the example's files in a folder of its own."""
    for program in front_matter(page.read_text()).get("needs", "").split():
        if shutil.which(program) is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{relative(page)} needs {program}")
    programs, work = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    work.mkdir()
    (programs / "agent-sandbox").symlink_to(BINARY)
    if page.parent.is_relative_to(ROOT / "examples"):
        shutil.copytree(page.parent, work, dirs_exist_ok=True)
    environment = {
        "PATH": f"{programs}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
        **variables,
    }
    return Session(work, environment), environment


@pytest.fixture
def reader(request, tmp_path):
    """A session for one page: programs on the path, its own data folder for the engine, free ports."""
    page = request.param
    settings = front_matter(page.read_text())
    data = tmp_path / "data"
    session, environment = open_session(
        page,
        tmp_path,
        AGENT_SANDBOX_DATA_DIR=str(data),
        AGENT_SANDBOX_API_LISTEN="127.0.0.1:0",
        AGENT_SANDBOX_ROUTER_LISTEN="127.0.0.1:0",
    )
    try:
        if settings.get("engine") == "up":
            session.expect_success("agent-sandbox up --detach")
            session.expect_success(f"export KUBECONFIG={data}/kubeconfig")
        yield page, session
    finally:
        session.close()
        purge = subprocess.run([BINARY, "down", "--purge", "--yes"], env=environment, capture_output=True, text=True, timeout=120)
        log = data / "up.log"
        assert purge.returncode == 0 or not data.exists(), f"{purge.stderr}\n{log.read_text() if log.exists() else ''}"


@pytest.mark.parametrize("reader", WITH_SNIPPETS, ids=relative, indirect=True)
def test_page(reader):
    page, session = reader
    for snippet in snippets(page):
        if not snippet.marked:
            try:
                run(snippet, session)
            except (SnippetFailed, ValueError) as error:
                failure = f"{relative(page)}:{snippet.line}: {error}"
            else:
                continue
            pytest.fail(failure, pytrace=False)


def run(snippet, session):
    if snippet.language == "console":
        for command, expected in console_steps(snippet.text):
            _, output = session.run(command)
            if not matches(expected, output):
                raise SnippetFailed(f"$ {command}\n--- expected\n{expected}\n--- printed\n{output}")
    elif snippet.language == "sh":
        session.expect_success(chained(snippet.text))
    elif snippet.title and (ROOT / snippet.title).is_file():
        if snippet.text.strip() not in (ROOT / snippet.title).read_text():
            raise SnippetFailed(f"this is not what {snippet.title} says")
    elif snippet.title and snippet.language in ("yaml", "toml", "json"):
        (session.folder / snippet.title).write_text(snippet.text)
    elif snippet.language == "python":
        name = snippet.title or f"snippet_{snippet.line}.py"
        (session.folder / name).write_text(snippet.text)
        session.expect_success(f"python3 {name}")
    elif snippet.language == "yaml":
        (session.folder / f"snippet_{snippet.line}.yaml").write_text(snippet.text)
        session.expect_success(f"kubectl apply --dry-run=server -f snippet_{snippet.line}.yaml")
    elif snippet.language == "json":
        json.loads(snippet.text)
    else:
        raise SnippetFailed(f"a {snippet.language} block names the tested file it comes from: title=\"examples/…\"")


def chained(script):
    """The script in a form that fails when any of its commands fails, and that keeps the shell running."""
    return f"trap 'failed=$?' ERR; failed=0\n{script}\ntrap - ERR; (exit $failed)"


def test_few_snippets_are_marked_as_not_run():
    everything = [snippet for page in PAGES for snippet in snippets(page)]
    marked = [snippet for snippet in everything if snippet.marked]
    assert all(re.search(r"Not run: \w+", snippet.title) for snippet in marked), "a mark says why"
    assert len(marked) <= MOST_MARKED * len(everything), "\n".join(f"{snippet.where} {snippet.title}" for snippet in marked)


def test_the_checks_can_fail(tmp_path):
    """A wrong output, a failing script and a failing program are each detected."""
    session = Session(tmp_path, dict(os.environ))
    page = tmp_path / "page.md"
    try:
        for wrong in ["```console\n$ echo one\ntwo\n```", "```sh\nfalse\necho after\n```", "```python\nraise SystemExit(3)\n```"]:
            page.write_text(wrong)
            with pytest.raises(SnippetFailed):
                run(snippets(page)[0], session)
        page.write_text("```console\n$ echo one two three\none ... three\n$ printf 'a\\nb\\nc\\n'\na\n...\nc\n```")
        run(snippets(page)[0], session)
    finally:
        session.close()
