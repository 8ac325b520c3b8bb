"""The examples that need no image also run on a real control plane, with our controller and our node, unchanged."""

import os
import sys

import pytest

from session import SnippetFailed
from snippets import front_matter, snippets
from test_pages import ROOT, open_session, relative, run

sys.path.append(str(ROOT / "tests" / "python"))
import second_engine

PAGES = [page for page in sorted((ROOT / "examples").glob("*/README.md")) if front_matter(page.read_text()).get("also") == "kubernetes"]


@pytest.fixture(scope="module")
def cluster():
    reason = second_engine.missing()
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"the second engine: {reason}")
    with second_engine.second_engine() as engine:
        yield engine


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_example(cluster, page, tmp_path):
    cluster.provide()
    session, _ = open_session(page, tmp_path, KUBECONFIG=str(cluster.kubeconfig))
    try:
        for snippet in snippets(page):
            if not snippet.marked:
                run(snippet, session)
    except (SnippetFailed, ValueError) as error:
        pytest.fail(f"{relative(page)}: {error}\n{cluster.diagnostics()}", pytrace=False)
    finally:
        session.close()
        # The next example begins where this one did.
        for kind in ("sandboxclaims", "sandboxes", "networkpolicies", "swp,sandboxtemplates"):
            cluster.kubectl("delete", kind, "--all", "-n", "default", "--timeout=60s")
        cluster.kubectl("delete", "configmaps,secrets", "--field-selector=metadata.name!=kube-root-ca.crt", "-n", "default")


def test_some_examples_are_among_them():
    assert len(PAGES) >= 12, [relative(page) for page in PAGES]
