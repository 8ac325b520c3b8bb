"""The embedded API and a real kube-apiserver give the same responses to one script of requests."""

import differential
from conftest import cluster_of


def test_both_apis_give_the_same_responses():
    with cluster_of("embedded", "--no-pods") as ours, cluster_of("real", "--no-pods") as theirs:
        theirs.apply_crds()
        steps = differential.load({})
        assert len(steps) > 300
        embedded = differential.Run(ours.api).run(steps)
        real = differential.Run(theirs.api).run(steps)
    unexplained, unneeded = differential.compare(embedded, real)
    steps_concerned = {name for name, *_ in unexplained}
    assert not unexplained, (
        f"{len(unexplained)} differences in {len(steps_concerned)} of {len(steps)} steps:\n{differential.report(unexplained)[:20000]}"
    )
    assert not unneeded, f"no longer needed in differences.yaml: {unneeded}"


def test_the_list_of_differences_is_short_and_reasoned():
    listed = differential.accepted()
    assert len(listed) <= 20
    for entry in listed:
        assert entry["reason"] and entry["clients"], entry
        assert entry["steps"] and entry["fields"], entry
