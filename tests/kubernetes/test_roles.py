"""`admin`, `edit` and `view` of the embedded API grant what those of a real control plane grant, on every resource that is served."""

import pytest

from conftest import cluster_of


@pytest.fixture(scope="module")
def embedded():
    with cluster_of("embedded") as cluster:
        yield cluster


def served(cluster):
    """Group and name of every built-in resource and subresource that the embedded API serves."""
    found = {("", resource["name"]) for resource in cluster.api.must("GET", "/api/v1")["resources"]}
    for group in cluster.api.must("GET", "/apis")["groups"]:
        if group["name"].endswith("agents.x-k8s.io"):
            continue
        for version in group["versions"]:
            listed = cluster.api.must("GET", f"/apis/{version['groupVersion']}")["resources"]
            found |= {(group["name"], resource["name"]) for resource in listed}
    return found


def granted(cluster, role):
    """What a role grants, rule by rule, as triples of group, resource and verb."""
    rules = cluster.api.must("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")["rules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("role", ["admin", "edit", "view"])
def test_default_roles_grant_the_same(real, embedded, role):
    resources = served(embedded)
    assert ("", "pods") in resources and ("", "pods/exec") in resources
    expected = {grant for grant in granted(real, role) if grant[:2] in resources}
    found = {grant for grant in granted(embedded, role) if grant[:2] in resources}
    assert {"missing": expected - found, "too much": found - expected} == {"missing": set(), "too much": set()}
