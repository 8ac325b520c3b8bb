"""The dashboard, the rules and the list of metrics match a running engine, with a real Prometheus."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from conftest import ROOT, RULES, fetch, wait_for

KIT = ROOT / "deploy" / "observability"
sys.path.insert(0, str(KIT))
import dashboard  # noqa: E402

QUERIES = [(entry[0], query) for _, entries in dashboard.ROWS for entry in entries for query, _ in entry[4]]
# A failure that did not happen has no series, so these queries may be empty on a healthy engine.
THRESHOLD = re.compile(r"\s[<>]\s(?:\d[\d.]*|2 \* .*)$")


def test_the_committed_dashboard_is_current():
    assert json.loads((KIT / "dashboard.json").read_text()) == dashboard.dashboard(), "run `make generate`"


@pytest.mark.parametrize("title,query", QUERIES, ids=[f"{title}-{index}" for index, (title, _) in enumerate(QUERIES)])
def test_each_query_of_the_dashboard_returns_data(prometheus, title, query):
    expression = query.replace("$__rate_interval", "1m")
    wait_for(f"data for {title}: {expression}", lambda: prometheus.query(expression), seconds=20)


def test_each_rule_is_evaluated(prometheus):
    def healthy():
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        return len(rules) == 9 and all(rule["health"] == "ok" for rule in rules)

    wait_for("an evaluation of every rule", healthy)


@pytest.mark.parametrize("rule", yaml.safe_load(RULES.read_text())["groups"][0]["rules"], ids=lambda rule: rule.get("alert") or rule["record"])
def test_each_rule_refers_to_existing_series(prometheus, rule):
    """Without its threshold, every alert's expression has data; and nothing fires on a healthy engine that leads."""
    expression = THRESHOLD.sub("", rule["expr"])
    metrics = re.findall(r"[a-z_:0-9]+(?=\{|\[|\)| [<>]|$)", expression)
    if rule.get("alert") in ("ControllerFailing", "RouterErrors", "RouterDenials", "PoolNotFilling") or "failures" in rule.get("record", ""):
        # Ratios of things that may not have happened: each metric must be known to the engine.
        known = [name for name in metrics if name.startswith(("agent_sandbox", "sandbox_router", "controller_runtime"))]
        assert known, expression
        page = prometheus.get("label/__name__/values")
        recorded = {rule["record"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"] if "record" in rule}
        missing = [name for name in known if name not in page and name not in recorded and not name.endswith("errors_total")]
        assert not missing, missing
    else:
        wait_for(f"data for {expression}", lambda: prometheus.query(expression), seconds=20)


def test_the_dashboard_fits_grafanas_published_schema(tmp_path):
    """Grafana publishes dashboards as types (`@grafana/schema`): the compiler checks ours, and rejects an invalid one."""
    if shutil.which("npm") is None:
        pytest.fail("npm is not installed") if os.environ.get("CI") else pytest.skip("npm is not installed")
    command = [ROOT / "scripts" / "npm-cache", "grafana", "@grafana/schema@13", "typescript@5"]
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if fetched.returncode != 0:
        pytest.fail(fetched.stderr) if os.environ.get("CI") else pytest.skip("a package index for npm is needed")
    folder = fetched.stdout.strip()
    (tmp_path / "node_modules").symlink_to(pathlib.Path(folder) / "node_modules")

    def compiles(value):
        (tmp_path / "check.ts").write_text(f'import type {{ Dashboard }} from "@grafana/schema";\nexport const ours: Dashboard = {json.dumps(value)};\n')
        command = [tmp_path / "node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022"]
        done = subprocess.run([*command, "check.ts"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        return done.returncode == 0, done.stdout

    right, said = compiles(dashboard.dashboard())
    assert right, said
    assert not compiles({**dashboard.dashboard(), "templating": {"list": [{"name": 3}]}})[0]


def test_rules_pass_promtool():
    if shutil.which("promtool") is None:
        pytest.fail("promtool is not installed") if os.environ.get("CI") else pytest.skip("promtool is not installed")
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "rules.test.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=KIT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_runbook():
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        if "alert" in rule:
            anchor = rule["annotations"]["runbook_url"].split("#")[1]
            assert f"{{ #{anchor} }}" in page, rule["alert"]


def test_every_metric_is_listed(engine):
    """Families without samples are not shown by a process, so the page may list more than one run shows, never less."""
    path = ROOT / "docs" / "reference" / "metrics.md"
    listed, seen = rows(path.read_text()), families(fetch(f"http://{engine.metrics}/metrics"))
    if os.environ.get("AGENT_SANDBOX_GENERATE"):
        path.write_text(page({**listed, **seen}))
        listed = rows(path.read_text())
    missing = {name: row for name, row in seen.items() if listed.get(name) != row}
    assert not missing, f"{missing}: run with AGENT_SANDBOX_GENERATE=1"


def test_every_listed_metric_is_in_the_sources():
    sources = "".join((ROOT / path).read_text() for path in ("crates/controller/src/serving/metrics.rs", "crates/controller/src/serving/metrics/sandboxes.rs", "crates/controller/src/serving/metrics/lifecycle.rs", "crates/router/src/observability/metrics.rs", "crates/engine/src/metrics.rs"))
    for name in rows((ROOT / "docs" / "reference" / "metrics.md").read_text()):
        word = name.removesuffix("_total").removeprefix("sandbox_router_")
        # The engine writes the families of its own as text.
        written = f'"{word}"' in sources or f'"{word.removeprefix("workqueue_")}"' in sources or f"# TYPE {word} " in sources
        assert written, name


def families(text):
    found = {}
    for kind, name, words in re.findall(r"^# (HELP|TYPE) (\S+) (.*)$", text, re.M):
        found.setdefault(name, {})[kind] = words
    total = lambda name, family: f"{name}_total" if family["TYPE"] == "counter" and not name.endswith("_total") else name
    return {total(name, family): (family["TYPE"], family.get("HELP", "").rstrip(".")) for name, family in found.items()}


def rows(text):
    return {name: (kind, words) for name, kind, words in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", text, re.M)}


def page(metrics):
    lines = "".join(f"| `{name}` | {kind} | {words} |\n" for name, (kind, words) in sorted(metrics.items()))
    return (
        "<!-- Rows come from a running engine: AGENT_SANDBOX_GENERATE=1 with tests/observability. -->\n\n# Metrics\n\n"
        "Of controller and router. A process shows those of its own part, once they have a value.\n\n| name | type | meaning |\n|---|---|---|\n" + lines
    )
