"""The embedded API and a real kube-apiserver give the same responses to one script of requests."""

import differential
from conftest import cluster_of


def test_both_apis_give_the_same_responses(report_text):
    with cluster_of("embedded", "--no-pods") as ours, cluster_of("real", "--no-pods") as theirs:
        theirs.apply_crds()
        steps = differential.load({})
        assert len(steps) > 300
        embedded = differential.Run(ours.api).run(steps)
        real = differential.Run(theirs.api).run(steps)
    unexplained, unneeded = differential.compare(embedded, real)
    report_text("responses of the embedded API that agree with kube-apiserver's", differential.table(steps, unexplained))
    steps_concerned = {name for name, *_ in unexplained}
    assert not unexplained, (
        f"{len(unexplained)} differences in {len(steps_concerned)} of {len(steps)} steps:\n{differential.report(unexplained)[:20000]}"
    )
    assert not unneeded, f"no longer needed in differences.yaml: {unneeded}"


def test_the_table_counts_each_response_once():
    steps = [
        {"name": "a", "path": "/api/v1/namespaces/diff/pods", "method": "POST"},
        {"name": "b", "path": "/api/v1/namespaces/diff/pods/p/status", "method": "PATCH", "type": "application/merge-patch+json"},
        {"name": "c", "path": "/apis/apps/v1/deployments?limit=1"},
        {"name": "d", "path": "/api/v1/namespaces/diff"},
        {"name": "e", "path": "/version"},
        {"name": "f", "watch": "/api/v1/namespaces/diff/pods?watch=true"},
        {"name": "g", "path": "/api/v1/namespaces/diff/pods", "method": "DELETE"},
    ]
    expected = [("pods", "create"), ("pods/status", "merge patch"), ("deployments", "list"), ("namespaces", "get"), ("(not a resource)", "other"), ("pods", "watch"), ("pods", "delete all")]
    assert [differential.target(step) for step in steps] == expected
    text = differential.table(steps, [("a", ".status", 1, 2)]).splitlines()
    assert text[-1].startswith("6 of 7 responses agree: 85.71 %")
    assert [line for line in text if line.startswith("pods ")][0].split() == ["pods", "0/1", "1", "1", "66.7", "%"]


def test_the_list_of_differences_is_short_and_reasoned():
    listed = differential.accepted()
    assert len(listed) <= 20
    for entry in listed:
        assert entry["reason"] and entry["clients"], entry
        assert entry["steps"] and entry["fields"], entry
