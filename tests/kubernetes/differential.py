"""Runs one script of requests against two API servers and compares their responses.

The script is data: YAML files of steps (see script/README.md). Only what no two servers can agree on is taken out of answers before they
are compared: uids, resourceVersions, times, generated names and addresses.
"""

import concurrent.futures
import copy
import fnmatch
import json
import pathlib
import re

import yaml

HERE = pathlib.Path(__file__).parent
SCRIPT = HERE / "script"

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
AGE = re.compile(r"^(\d+[smhd])+$|^<invalid>$")
ADDRESS = re.compile(r"\b(?!0\.0\.0\.0\b)(?!127\.)\d{1,3}(\.\d{1,3}){3}\b")
INDEX = re.compile(r"\[[0-9]+\]")
ADDRESS_KEYS = {"clusterIP", "clusterIPs", "podIP", "podIPs", "hostIP", "hostIPs", "serverAddress"}


def load(variables):
    """All steps, with `each` written out."""
    steps = []
    for path in sorted(SCRIPT.glob("*.yaml")):
        for section in yaml.safe_load_all(path.read_text()):
            if not section:
                continue
            for fixture in section.get("each", [{}]):
                for step in section["steps"]:
                    step = copy.deepcopy(step)
                    step = merged(substitute(step, {**variables, **section.get("with", {}), **fixture}))
                    step["name"] = "/".join(filter(None, [path.stem, section["section"], fixture.get("kind"), step["name"]]))
                    steps.append(step)
    names = [step["name"] for step in steps]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"steps with the same name: {sorted(twice)}"
    return steps


def substitute(value, variables):
    """`${name}` inside text; text that is only `${name}` becomes the variable's value, whatever its type."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{(\w+)\}", value)
        if whole and whole[1] in variables:
            return copy.deepcopy(variables[whole[1]])
        return re.sub(r"\$\{(\w+)\}", lambda m: str(variables[m[1]]) if m[1] in variables else m[0], value)
    if isinstance(value, list):
        return [substitute(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, variables) for key, item in value.items()}
    return value


def merged(value):
    """An object's `merge` is laid into it: how a fixture's content gets into a body."""
    if isinstance(value, list):
        return [merged(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: merged(item) for key, item in value.items()}
    content = value.pop("merge", {})
    return {**content, **value}


def pick(value, path):
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError):
            return "(no such field)"
    return value


class Run:
    """One pass of the script over one server."""

    def __init__(self, api):
        self.api = api
        self.saved = {}
        self.versions = set()
        self.generated = {}

    def run(self, steps):
        return [(step["name"], self.step(step)) for step in steps]

    def step(self, step):
        step = substitute(step, self.saved)
        if "race" in step:
            return self.race(step["race"])
        if "watch" in step:
            return self.watched(step)
        if "until" in step:
            return self.until(step)
        answer = self.send(step)
        if "save" in step and 200 <= answer.status < 300:
            for name, path in step["save"].items():
                self.saved[name] = pick(answer.json(), path)
        return self.shown(step, answer)

    def send(self, step):
        headers = {key: str(value) for key, value in step.get("headers", {}).items()}
        if "type" in step:
            headers["Content-Type"] = step["type"]
        body = step.get("body")
        return self.api.request(step.get("method", "GET"), step["path"], body, headers)

    def shown(self, step, answer):
        shown = {"status": answer.status}
        if "warning" in answer.headers:
            shown["warning"] = answer.headers["warning"]
        if step.get("only") == "status":
            return shown
        content_type = answer.headers.get("content-type", "").split(";")[0]
        shown["content-type"] = content_type
        if content_type == "application/json":
            body = answer.json()
            self.learn(body)
            if step.get("unordered") == "causes":
                self.order_causes(body)
            elif "unordered" in step:
                body[step["unordered"]].sort(key=lambda item: item["name"])
                for item in body[step["unordered"]]:
                    item.get("verbs", []).sort()
            if step.get("only") == "reason":
                shown["body"] = {key: body.get(key) for key in ("kind", "status", "reason", "code")}
            elif "field" in step:
                shown["body"] = self.normal(pick(body, step["field"]))
            else:
                shown["body"] = self.normal(body)
        else:
            shown["body"] = answer.body.decode(errors="replace") if step.get("only") != "type" else None
        return shown

    def order_causes(self, body):
        """Kubernetes checks the members of an object in no order; the message must still name every cause."""
        body["details"]["causes"].sort(key=lambda cause: (cause["field"], cause["reason"]))
        for cause in body["details"]["causes"]:
            body["message"] = body["message"].replace(f"{cause['field']}: {cause['message']}", "<cause>")

    def race(self, race):
        """Sends the same request many times concurrently: the number of responses by status, and the resulting object."""
        with concurrent.futures.ThreadPoolExecutor(race["writers"]) as pool:
            requests = [substitute(race["request"], {"i": str(i)}) for i in range(race["writers"])]
            answers = list(pool.map(self.send, requests))
        counts = {}
        for answer in answers:
            self.learn(answer.json())
            counts[str(answer.status)] = counts.get(str(answer.status), 0) + 1
        return {"answers": counts if race.get("count", True) else sorted(counts)}

    def until(self, step):
        """Repeats a read until it has the wanted status, for asynchronous work of the servers."""
        def look():
            answer = self.send(step)
            return answer if answer.status == step["until"] else None
        answer = self.api.eventually(step["name"], look, within=30)
        return self.shown(step, answer)

    def watched(self, step):
        """Opens a watch, carries out requests, and shows the events in their order."""
        watch = self.api.watch(step["watch"], step.get("seconds", 20))
        try:
            if watch.status != 200:
                watch.thread.join(5)
                return {"status": watch.status}
            answers = []
            for request in step.get("during", []):
                request = substitute(request, self.saved)
                answers.append(self.step({"name": step["name"], **request}))
            wanted = step["events"]
            events = watch.until(lambda seen: len(relevant(seen)) >= wanted)
        finally:
            watch.close()
        for event in events:
            self.learn(event["object"])
        if step.get("sorted"):
            events = sorted(relevant(events), key=lambda event: event["object"]["metadata"]["name"])
        shown = [self.normal(event) for event in relevant(events)]
        if step.get("only") == "types":
            shown = [[event["type"], event["object"]["metadata"].get("name")] for event in shown]
        return {"status": 200, "events": shown, "during": answers}

    def learn(self, body):
        """Remembers versions and generated names, so that they are recognised inside messages."""
        if isinstance(body, list):
            for item in body:
                self.learn(item)
        elif isinstance(body, dict):
            metadata = body.get("metadata")
            if isinstance(metadata, dict):
                if metadata.get("resourceVersion"):
                    self.versions.add(metadata["resourceVersion"])
                prefix, name = metadata.get("generateName"), metadata.get("name", "")
                if prefix and name.startswith(prefix):
                    self.generated[name] = f"{prefix}<generated>"
            for value in body.values():
                self.learn(value)

    def normal(self, value, key=None):
        if isinstance(value, dict):
            return {UUID.sub("<uid>", k): self.normal(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.normal(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if key in ("resourceVersion", "uid", "continue"):
            return f"<{key}>" if value else value
        if key in ADDRESS_KEYS:
            return ADDRESS.sub("<address>", value)
        text = UUID.sub("<uid>", value)
        text = TIME.sub("<time>", text)
        if AGE.match(text):
            return "<age>"
        for name, shown in self.generated.items():
            text = text.replace(name, shown)
        if key == "message":
            text = re.sub(r"\b\d+\b(?!-)", lambda m: "<version>" if m[0] in self.versions else m[0], text)
        return text


def relevant(events):
    return [event for event in events if event["type"] != "BOOKMARK"]


def differences(name, left, right, path=""):
    """Every place where two answers differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            if key not in left:
                yield name, f"{path}.{key}", "(absent)", right[key]
            elif key not in right:
                yield name, f"{path}.{key}", left[key], "(absent)"
            else:
                yield from differences(name, left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right)):
            yield from differences(name, one, other, f"{path}[{index}]")
    elif left != right:
        yield name, path, left, right


def accepted():
    """Intended differences: each has a reason and names the clients that were tried with it."""
    return yaml.safe_load((HERE / "differences.yaml").read_text()) or []


def is_accepted(entry, name, path):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in entry["steps"]) and any(
        fnmatch.fnmatchcase(INDEX.sub("[*]", path), pattern.replace("[", "[[]")) for pattern in entry["fields"]
    )


def compare(embedded, real):
    """Unexplained differences, and entries of the accepted list that nothing needed."""
    assert [name for name, _ in embedded] == [name for name, _ in real]
    listed, needed, unexplained = accepted(), set(), []
    for (name, ours), (_, theirs) in zip(embedded, real):
        for difference in differences(name, ours, theirs):
            explaining = [i for i, entry in enumerate(listed) if is_accepted(entry, difference[0], difference[1])]
            needed.update(explaining)
            if not explaining:
                unexplained.append(difference)
    return unexplained, [entry["id"] for i, entry in enumerate(listed) if i not in needed]


PATCHES = {"application/json-patch+json": "json patch", "application/merge-patch+json": "merge patch", "application/strategic-merge-patch+json": "strategic patch", "application/apply-patch+yaml": "apply"}
VERBS = ["create", "get", "list", "watch", "update", *PATCHES.values(), "patch", "delete", "delete all", "race", "other"]


def target(step):
    """The resource and the verb of a step, from its path and method."""
    if "watch" in step:
        return resource_of(step["watch"])[0], "watch"
    if "race" in step:
        return resource_of(step["race"]["request"]["path"])[0], "race"
    resource, named = resource_of(step["path"])
    method = step.get("method", "GET")
    if method == "GET":
        verb = "get" if named else "list"
        return resource, "watch" if re.search(r"[?&]watch=(true|1)", step["path"]) else verb if resource != "(not a resource)" else "other"
    if method == "PATCH":
        return resource, PATCHES.get(step.get("type", "").split(";")[0], "patch")
    if method == "DELETE":
        return resource, "delete" if named else "delete all"
    return resource, {"POST": "create", "PUT": "update"}.get(method, "other")


def resource_of(path):
    """The resource that a path names, with its subresource, and whether it names one object."""
    parts = [part for part in path.split("?")[0].split("/") if part]
    rest = parts[2:] if parts[:1] == ["api"] else parts[3:] if parts[:1] == ["apis"] else []
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    if not rest:
        return "(not a resource)", False
    return "/".join([rest[0], *rest[2:3]]), len(rest) > 1


def table(steps, unexplained):
    """Rows of resources and columns of verbs: how many responses agree of how many, and the percentage of all."""
    differing = {name for name, *_ in unexplained}
    cells, rows = {}, {}
    for step in steps:
        resource, verb = target(step)
        for cell in (cells.setdefault((resource, verb), [0, 0]), rows.setdefault(resource, [0, 0])):
            cell[0] += step["name"] not in differing
            cell[1] += 1
    verbs = [verb for verb in VERBS if any((resource, verb) in cells for resource in rows)]
    shown = lambda cell: "" if cell is None else str(cell[1]) if cell[0] == cell[1] else f"{cell[0]}/{cell[1]}"
    lines = [["resource", *verbs, "agree"]]
    for resource in sorted(rows):
        agree, total = rows[resource]
        lines.append([resource, *(shown(cells.get((resource, verb))) for verb in verbs), f"{100 * agree / total:.1f} %"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))) for line in lines]
    agree = len(steps) - len(differing)
    return "\n".join([*text, f"{agree} of {len(steps)} responses agree: {100 * agree / len(steps):.2f} %, with {len(accepted())} kinds of intended differences"])


def report(unexplained):
    lines = []
    for name, path, ours, theirs in unexplained:
        lines.append(f"{name} {path}\n    embedded: {json.dumps(ours)[:400]}\n    real:     {json.dumps(theirs)[:400]}")
    return "\n".join(lines)
