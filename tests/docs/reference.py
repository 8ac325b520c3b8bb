"""Renders the reference pages from the product itself: CRDs, help texts, metrics, enums in the sources, OpenAPI.

`python tests/docs/reference.py` writes docs/reference; test_reference.py fails when a committed page differs.
"""

import json
import os
import pathlib
import re
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("AGENT_SANDBOX_BIN", ROOT / "target" / "debug" / "agent-sandbox"))
DESTINATION = ROOT / "docs" / "reference"


def generated_from(source):
    return f"<!-- Generated from {source} by `make generate`; do not edit. -->\n\n"


# --- custom resources

# Fields of Kubernetes' own structures, which Kubernetes documents.
FOREIGN = {"podTemplate.spec": "a Kubernetes PodSpec", "volumeClaimTemplates[].spec": "a Kubernetes PersistentVolumeClaimSpec",
           "networkPolicy.egress": "rules as in a Kubernetes NetworkPolicy", "networkPolicy.ingress": "rules as in a Kubernetes NetworkPolicy"}


def resources():
    page = generated_from("`deploy/crds`") + "# Custom resources\n\nThe stored version is `v1beta1`; `v1alpha1` is served and converted both ways without loss.\n"
    for file in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        names, group = crd["spec"]["names"], crd["spec"]["group"]
        page += f"\n## {names['kind']}\n\n`{group}`, short names: {', '.join(f'`{name}`' for name in names.get('shortNames', [])) or 'none'}\n"
        for version in sorted(crd["spec"]["versions"], key=lambda version: version["name"], reverse=True):
            page += f"\n### {names['kind']} {version['name']}\n"
            if version.get("deprecated"):
                page += f"\n!!! warning \"Deprecated\"\n    {version.get('deprecationWarning', 'Use v1beta1.')}\n"
            columns = version.get("additionalPrinterColumns", [])
            if columns:
                page += f"\nColumns of `kubectl get`: {', '.join(column['name'] for column in columns)}.\n"
            schema = version["schema"]["openAPIV3Schema"]
            for part in ("spec", "status"):
                rows = list(fields(schema["properties"].get(part, {}), ""))
                if rows:
                    page += f"\n**{part}**\n\n| field | type | meaning |\n|---|---|---|\n" + "".join(rows)
    return page


def fields(schema, prefix):
    required = set(schema.get("required", []))
    for name, field in sorted(schema.get("properties", {}).items()):
        path = f"{prefix}{name}"
        yield f"| `{path}` | {kind(field)}{' **required**' if name in required else ''} | {meaning(field, path)} |\n"
        if any(path.endswith(known) for known in FOREIGN):
            continue
        inner = field.get("items", field)
        yield from fields(inner, f"{path}{'[]' if 'items' in field else ''}.")


def kind(field):
    if "items" in field:
        return f"list of {kind(field['items'])}"
    if field.get("x-kubernetes-int-or-string"):
        return "number or string"
    if "additionalProperties" in field:
        return "map"
    return field.get("format") or field.get("type", "object")


def meaning(field, path):
    foreign = next((text for known, text in FOREIGN.items() if path.endswith(known)), None)
    parts = [foreign or field.get("description", "")]
    if "enum" in field:
        parts.append("One of " + ", ".join(f"`{value}`" for value in field["enum"]) + ".")
    if "default" in field:
        parts.append(f"Default `{json.dumps(field['default'])}`.")
    for rule in field.get("x-kubernetes-validations", []):
        parts.append(f"Rule: {rule.get('message', rule['rule'])}.")
    return " ".join(part.strip() for part in parts if part).replace("\n", " ").replace("|", "\\|")


# --- command line

def say(*words):
    environment = {"PATH": os.environ["PATH"], "NO_COLOR": "1", "COLUMNS": "100", "HOME": "/"}
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, env=environment, timeout=30)
    return (done.stdout or done.stderr).rstrip()


def command_line():
    page = generated_from("`agent-sandbox help`") + "# Command line\n\nEvery command explains itself: `agent-sandbox help COMMAND`.\n"
    for words in commands([]):
        text = re.sub(rf"\[default: {re.escape(str(BINARY))}\]", "", say(*words, "--help"))
        page += f"\n{'#' * min(2 + max(len(words) - 1, 0), 4)} agent-sandbox {' '.join(words)}".rstrip() + f"\n\n```text\n{text}\n```\n"
    return page


def commands(words):
    """This command and every command below it. The controller and router have pages of their own."""
    yield words
    listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  ))+)", say(*words, "--help") + "\n", re.M)
    for name in re.findall(r"^  ([a-z0-9-]+)", listed[1], re.M) if listed else []:
        if name not in ("help", "controller", "router"):
            yield from commands([*words, name])


def controller_settings():
    return (
        generated_from("`agent-sandbox controller --help`")
        + "# Controller settings\n\nUpstream's flags, with upstream's defaults; a few more are ours. All mistakes are reported at once.\n\n```text\n"
        + say("controller", "--help")
        + "\n```\n"
    )


# --- conditions and events

ENUMS = [
    ("Ready of a Sandbox", "sandbox.rs", "SandboxReady"),
    ("Suspended of a Sandbox", "sandbox.rs", "SandboxSuspended"),
    ("PodScheduled of a Sandbox", "sandbox.rs", "PodScheduling"),
    ("VolumesPending of a Sandbox", "sandbox.rs", "VolumesPending"),
    ("IdleSuspend of a Sandbox", "sandbox.rs", "IdleSuspend"),
    ("Ready of a claim", "claim.rs", "ClaimReady"),
]
EVENTS = {
    "SandboxAdopted": ("SandboxClaim", "a warm sandbox was given to the claim"),
    "SandboxProvisioned": ("SandboxClaim", "a new sandbox was made for the claim"),
    "ClaimExpired": ("SandboxClaim", "the claim's time is over; the note says what happens to it"),
    "WarmPoolNotProgressing": ("SandboxWarmPool", "members do not become ready; the note says why"),
    "WarmPoolProgressing": ("SandboxWarmPool", "members become ready again"),
    "MultiplePods": ("Sandbox", "the Sandbox controls more than one Pod; none is chosen or created"),
    "IdleSuspended": ("Sandbox", "suspended because it was not used for its idle time"),
    "WokenByRequest": ("Sandbox", "resumed because a request waits for it"),
}

NODE_EVENTS = {
    "Scheduled": "the Pod was given to this node",
    "FailedScheduling": "the Pod asks for what this node does not have",
    "Pulling": "an image is being fetched",
    "PullProgress": "how far a long pull has come",
    "Pulled": "the image is here, or was already",
    "ImageAlias": "a local image stands in for the one that was named",
    "Started": "a container runs",
    "Killing": "a container is being stopped",
    "BackOff": "a container fails again and again; the next attempt waits",
    "Failed": "a container could not be made or started, or its image not be fetched; the note says why",
    "Unhealthy": "a probe failed",
    "FailedMount": "a volume cannot be made ready; it is tried again",
    "FailedCreatePodSandBox": "the Pod's namespaces, network or root could not be made; the note says which step",
    "RuntimeClassUnavailable": "the program of the Pod's runtime class is missing; the note says what to install",
    "FailedPostStartHook": "the container's hook failed, and so it was stopped",
    "InvalidEnvironmentVariableNames": "keys of a ConfigMap or Secret that cannot be variables were left out",
    "NetworkPolicyFailed": "network rules could not be set; the Pod stays closed",
    "PodRefused": "the Pod asks for what this node never gives; it has failed",
    "UnsupportedField": "the Pod has a field that has no effect here",
    "PortTaken": "sandboxd could not listen on one of its ports",
    "DeadlineExceeded": "the Pod ran longer than its activeDeadlineSeconds",
    "Evicted": "the Pod used more of the disk than it may, or the node ran short",
    "SupervisorLost": "the Pod's supervisor was killed; its containers are gone",
    "SharedUid": "weaker without root and subordinate ids: the Pod runs as the calling user",
    "LimitNotEnforced": "weaker without root: a memory or CPU limit is not held",
    "StorageMeasuredOnly": "a disk limit is measured and evicted by, not held by the file system",
    "NoEgress": "without root and pasta no traffic leaves the Pod",
    "OpenToRoot": "other programs of root on this machine can connect to Pods, because cgroups (v2) cannot tell them from the engine",
    "SharedUserLimits": "without root, inotify instances, timers and message queues of all sandboxes count for your user; each may use a quarter",
    "NoLandlock": "the kernel has no Landlock; all other isolation is in place",
}


def conditions():
    page = generated_from("`crates/api/src/conditions`") + (
        "# Conditions, reasons and events\n\nReasons are stable words: match on them, never on messages.\n"
    )
    for title, file, name in ENUMS:
        source = (ROOT / "crates/api/src/conditions" / file).read_text()
        body = re.search(rf"pub enum {name} \{{\n(.*?)\n\}}", source, re.S)[1]
        said = reasons(implementation(source, name), outcomes(source) if "PodOutcome" in source else [])
        page += f"\n## {title}\n\n| case | reason | meaning |\n|---|---|---|\n"
        for text, variant in re.findall(r"((?:    ///[^\n]*\n)+)    (\w+)", body + "\n"):
            words = " ".join(line.strip().removeprefix("///").strip() for line in text.splitlines())
            own = "the Pod's own, or " if variant == "Mirrored" else ""
            page += f"| {variant} | {own}{' or '.join(f'`{reason}`' for reason in said[variant])} | {words} |\n"
    page += "\n## Finished of a Sandbox\n\nPresent only after the Pod has ended; a claim mirrors it.\n\n| case | reason |\n|---|---|\n"
    source = (ROOT / "crates/api/src/conditions/sandbox.rs").read_text()
    page += "".join(f"| {reason.removeprefix('Pod')} | `{reason}` |\n" for reason in outcomes(source))
    page += "\n## Events of the controller\n\n| reason | on | meaning |\n|---|---|---|\n"
    page += "".join(f"| `{reason}` | {kind} | {text} |\n" for reason, (kind, text) in EVENTS.items())
    page += "\n## Events of the embedded node\n\nAll of them are about Pods. `kubectl describe pod` shows them in order.\n\n| reason | meaning |\n|---|---|\n"
    page += "".join(f"| `{reason}` | {text} |\n" for reason, text in NODE_EVENTS.items())
    return page


def outcomes(source):
    """The reasons of a Pod that has ended."""
    return re.findall(r"Reason::(\w+)", implementation(source, "PodOutcome"))


def reasons(text, ended):
    """For each case the reasons that its arm of the match names, in the order of their first mention."""
    found = {}
    arms = re.finditer(r"^ +((?:Self::\w+[^=|\n]*?\|?\s*)+)=> *(.*?)(?=^ +Self::|\Z)", text, re.S | re.M)
    for arm in arms:
        named = re.findall(r"Reason::(\w+)", arm[2]) + (ended if "outcome.reason()" in arm[2] else [])
        for variant in re.findall(r"Self::(\w+)", arm[1]):
            found.setdefault(variant, []).extend(reason for reason in dict.fromkeys(named) if reason not in found.get(variant, []))
    return found


def implementation(source, name):
    return re.search(rf"impl {name} \{{\n(.*?)\n\}}", source, re.S)[1]


# --- HTTP

def http():
    document = json.loads((ROOT / "crates/sandboxd/src/dialects/native/openapi.json").read_text())
    page = generated_from("`crates/sandboxd/src/dialects/native/openapi.json`") + (
        f"# HTTP API of sandboxd\n\n{document['info']['description']} A running daemon serves this document as OpenAPI at `/sandbox/v1/openapi.json`.\n"
        "\n| call | parameters | what it does |\n|---|---|---|\n"
    )
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            if method == "parameters":
                continue
            parameters = [*calls.get("parameters", []), *call.get("parameters", [])]
            names = ", ".join(f"`{resolve(document, parameter)['name']}`" for parameter in parameters)
            page += f"| `{method.upper()} {path}` | {names} | {call.get('summary', '')} |\n"
    page += "\n## Bodies\n"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        rows = [
            f"| `{field}` | {kind_of_json(document, value)} | {value.get('description', '')} |\n"
            for field, value in schema.get("properties", {}).items()
        ]
        if rows:
            page += f"\n### {name}\n\n{schema.get('description', '')}\n\n| field | type | meaning |\n|---|---|---|\n" + "".join(rows)
    return page


def resolve(document, node):
    if "$ref" not in node:
        return node
    for part in node["$ref"].removeprefix("#/").split("/"):
        document = document[part]
    return document


def kind_of_json(document, value):
    if "$ref" in value:
        return value["$ref"].rsplit("/", 1)[1]
    if value.get("type") == "array":
        return f"list of {kind_of_json(document, value.get('items', {}))}"
    kinds = value.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds


PAGES = {"resources.md": resources, "cli.md": command_line, "controller-settings.md": controller_settings, "conditions.md": conditions, "http.md": http}

if __name__ == "__main__":
    DESTINATION.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        (DESTINATION / name).write_text(render())
        print(f"docs/reference/{name}")
