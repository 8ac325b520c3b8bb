#!/usr/bin/env python3
"""Prints the Grafana dashboard. `make generate` writes it to dashboard.json; the test suite runs each query on a real Prometheus."""

import json

SOURCE = {"type": "prometheus", "uid": "${source}"}
STARTUP = "agent_sandbox_claim_controller_startup_latency_ms"


def quantile(q, histogram, by="launch_type"):
    return f"histogram_quantile({q}, sum by (le, {by}) (rate({histogram}_bucket[$__rate_interval])))"


# Rows of panels: (title, unit, kind, what it tells, [(query, legend)])
ROWS = [
    ("Now", [
        ("Sandboxes", "short", "stat", "All Sandboxes that the controller knows.", [("sum(max by (namespace, ready_condition, launch_type, sandbox_template, owned_by, expired) (agent_sandboxes))", "sandboxes")]),
        ("Claims a minute", "short", "stat", "Claims that got a Sandbox.", [("sum(rate(agent_sandbox_claim_creation_total[$__rate_interval])) * 60", "claims")]),
        ("Served warm", "percentunit", "stat", "Share of claims that a warm Sandbox served. Low: the pools are too small.", [('sum(rate(agent_sandbox_claim_creation_total{launch_type="warm"}[$__rate_interval])) / sum(rate(agent_sandbox_claim_creation_total[$__rate_interval]))', "warm")]),
        ("Leaders", "short", "stat", "Controllers that lead. One is right.", [("sum(leader_election_master_status) or vector(0)", "leaders")]),
    ]),
    ("Claims", [
        ("Time to readiness", "ms", "timeseries", "From the controller's first sight of a claim to its readiness.", [(quantile(0.5, STARTUP), "p50 {{launch_type}}"), (quantile(0.99, STARTUP), "p99 {{launch_type}}")]),
        ("Claims by pool", "cps", "timeseries", "Claims a second, by pool and by how they were served.", [("sum by (warmpool_name, launch_type) (rate(agent_sandbox_claim_creation_total[$__rate_interval]))", "{{warmpool_name}} {{launch_type}}")]),
        ("Sandboxes by state", "short", "timeseries", "Sandboxes by readiness and by owner.", [("sum by (ready_condition, owned_by) (agent_sandboxes)", "ready {{ready_condition}}, {{owned_by}}")]),
        ("Sandbox creation", "ms", "timeseries", "From a Sandbox's creation to its readiness.", [(quantile(0.5, "agent_sandbox_creation_latency_ms"), "p50 {{launch_type}}"), (quantile(0.99, "agent_sandbox_creation_latency_ms"), "p99 {{launch_type}}")]),
    ]),
    ("Router", [
        ("Requests", "reqps", "timeseries", "Requests a second by status.", [("sum by (code) (rate(sandbox_router_requests_total[$__rate_interval]))", "{{code}}")]),
        ("Duration", "s", "timeseries", "Time from arrival to the last byte; long streams are long.", [("histogram_quantile(0.5, sum by (le) (rate(sandbox_router_request_duration_seconds_bucket[$__rate_interval])))", "p50"), ("histogram_quantile(0.99, sum by (le) (rate(sandbox_router_request_duration_seconds_bucket[$__rate_interval])))", "p99")]),
        ("Under way", "short", "timeseries", "Requests and streams being served.", [("sum(sandbox_router_inflight_requests)", "requests")]),
        ("Failures", "cps", "timeseries", "Failures on the sandboxes' side, by reason.", [("sum by (reason) (rate(sandbox_router_upstream_errors_total[$__rate_interval])) or vector(0)", "{{reason}}")]),
        ("Decisions", "cps", "timeseries", "Who was let in.", [("sum by (decision) (rate(sandbox_router_authz_decisions_total[$__rate_interval]))", "{{decision}}")]),
    ]),
    ("Controller", [
        ("Passes", "cps", "timeseries", "Reconciler passes by result.", [("sum by (controller, result) (rate(controller_runtime_reconcile_total[$__rate_interval]))", "{{controller}} {{result}}")]),
        ("Duration of passes", "s", "timeseries", "99th percentile by reconciler.", [(quantile(0.99, "controller_runtime_reconcile_time_seconds", "controller"), "{{controller}}")]),
        ("Requests to the API", "reqps", "timeseries", "Requests by method and status.", [("sum by (method, code) (rate(rest_client_requests_total[$__rate_interval]))", "{{method}} {{code}}")]),
        ("Waiting", "short", "timeseries", "Objects that wait for a pass.", [("sum by (name) (workqueue_depth)", "{{name}}")]),
    ]),
]


def panel(number, title, unit, kind, description, targets, position):
    return {
        "id": number, "title": title, "type": kind, "description": description, "datasource": SOURCE, "gridPos": position,
        "targets": [{"refId": chr(65 + index), "expr": query, "legendFormat": legend, "datasource": SOURCE} for index, (query, legend) in enumerate(targets)],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}} if kind == "timeseries" else {"reduceOptions": {"calcs": ["lastNotNull"]}},
    }


def dashboard():
    panels, number, y = [], 0, 0
    for row, entries in ROWS:
        number += 1
        panels.append({"id": number, "title": row, "type": "row", "collapsed": False, "panels": [], "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        y += 1
        stats = all(entry[2] == "stat" for entry in entries)
        width, height, columns = (24 // len(entries), 4, len(entries)) if stats else (12, 8, 2)
        for index, entry in enumerate(entries):
            number += 1
            panels.append(panel(number, *entry, {"h": height, "w": width, "x": index % columns * width, "y": y + index // columns * height}))
        y += (len(entries) + columns - 1) // columns * height
    return {
        "uid": "agent-sandbox", "title": "Agent Sandbox", "tags": ["agent-sandbox"], "schemaVersion": 39, "version": 1, "editable": True,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "30s", "timezone": "browser", "panels": panels,
        "annotations": {"list": []}, "links": [],
        "templating": {"list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}]},
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
