"""The snippets of the product's source documents, run as they stand against a real engine, with a published SDK."""

import importlib.metadata
import re

import pytest
import seeds

VERSION = importlib.metadata.version("k8s-agent-sandbox")
OLD = VERSION.startswith("0.4")


def adapt(code):
    """From 0.5 on the SDK says `warmpool=` for what 0.4 calls `template=`."""
    return code if OLD else re.sub(r"\btemplate=", "warmpool=", code)


def text_of(prefix):
    text = seeds.document(prefix)
    if text is None:
        pytest.skip("../shared/seeds is not here; test_flows.py runs the same in our own words")
    return text


def run(code):
    """Runs a snippet; what it printed is the business of the test that calls this."""
    exec(compile(adapt(code), "snippet", "exec"), {})  # noqa: S102 - the documents' own code


def expect_old_sdk_to_fail(request, code):
    """0.4.x uploads under the file's base name only, so a program that writes into folders cannot find its files there."""
    if OLD and 'f"{sandbox_dir}/{filename}"' in code:
        request.applymarker(pytest.mark.xfail(strict=True, reason="0.4.x uploads by base name"))


def test_the_filesystem_page_runs(engine, workplace, capsys):
    """The template of the first page is applied word for word, then its snippets run in order. D-180."""
    page = text_of("000")
    manifest = page.split("<<'EOF'\n")[1].split("\nEOF")[0]
    applied = engine.kubectl("apply", "-n", "default", "-f", "-", input=manifest)
    assert applied.returncode == 0, applied.stderr
    found = seeds.snippets(page)
    assert len(found) == 1 and "terminate" in found[0]
    run(found[0])
    printed = capsys.readouterr().out
    assert "Hello from the SDK!" in printed
    assert "hello.txt (file, 19 bytes)" in printed
    assert "File exists!" in printed


def transfer_snippets():
    text = seeds.document("001")
    return seeds.snippets(text) if text else []


@pytest.mark.parametrize("index", range(5))
def test_the_transfer_page_runs(engine, workplace, capsys, request, index):
    """Each of the five programs of the upload and download page."""
    text_of("001")
    found = transfer_snippets()
    assert len(found) == 5, "the page has five programs"
    code = found[index]
    expect_old_sdk_to_fail(request, code)
    if "/home/user/output" in code and "output.csv" not in code:
        code = code.replace('sandbox_dir = "/home/user/output"', 'sandbox.commands.run("mkdir -p /home/user/output && echo 1 > /home/user/output/one.txt")\nsandbox_dir = "/home/user/output"')
    run(code)
    printed = capsys.readouterr().out
    expected = ["data.csv (8 bytes)", "Downloaded 18 bytes", "main.py", "Downloaded one.txt (2 bytes)", "Processed 3 rows"]
    assert expected[index] in printed
