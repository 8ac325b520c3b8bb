"""Headers, claim fields, addresses and kubeconfigs: helpers that several modules share."""

import ipaddress
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .constants import SANDBOX_NAME_HASH_LABEL
from .models import SandboxClaimEnvVar


def merge_headers(*layers: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Merges headers; a later layer overrides an earlier one, regardless of case."""
    merged: Dict[str, Any] = {}
    for layer in layers:
        for name, value in (layer or {}).items():
            merged[name.lower()] = (name, value)
    return dict(merged.values())


def construct_sandbox_claim_lifecycle_spec(shutdown_after_seconds: int) -> Dict[str, str]:
    """`spec.lifecycle` of a claim that expires after that time and is then deleted."""
    if type(shutdown_after_seconds) is not int:
        kind = type(shutdown_after_seconds).__name__
        raise ValueError(f"shutdown_after_seconds must be an integer, got {kind}")
    if shutdown_after_seconds <= 0:
        raise ValueError(f"shutdown_after_seconds must be positive, got {shutdown_after_seconds}")
    try:
        time = datetime.now(timezone.utc) + timedelta(seconds=shutdown_after_seconds)
    except OverflowError:
        raise ValueError(f"shutdown_after_seconds is too large: {shutdown_after_seconds}") from None
    return {"shutdownTime": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "shutdownPolicy": "Delete"}


def select_pod_ip(ips: Optional[Sequence[object]]) -> Optional[str]:
    """The address to prefer: IPv4, in its shortest form. Entries are addresses, or objects with `ip`."""
    first = None
    for entry in ips or []:
        text = entry.get("ip") if isinstance(entry, dict) else entry
        try:
            parsed = ipaddress.ip_address(text)  # type: ignore[arg-type]
        except ValueError:
            continue
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        if parsed.version == 4:
            return str(parsed)
        first = first or str(parsed)
    return first


def extract_sandbox_name_hash(sandbox_object: Dict[str, Any]) -> Optional[str]:
    """The name hash in a Sandbox's selector; other terms are ignored."""
    selector = (sandbox_object.get("status") or {}).get("selector") or ""
    for requirement in selector.split(","):
        key, equals, value = requirement.partition("=")
        if equals and key.strip() == SANDBOX_NAME_HASH_LABEL:
            return value.strip() or None
    return None


def construct_sandbox_claim_env_spec(env: Optional[Mapping[str, str]]) -> List[SandboxClaimEnvVar]:
    """`spec.env` of a claim, checked."""
    return [SandboxClaimEnvVar(name=name, value=value) for name, value in (env or {}).items()]


def kubeconfig_from_configuration(
    configuration: Any, authorization: Optional[str], default_headers: Optional[Mapping[str, str]] = None
) -> Dict[str, Any]:
    """A kubeconfig for the cluster of a client of the `kubernetes` package."""
    cluster: Dict[str, Any] = {"server": configuration.host}
    if not configuration.verify_ssl:
        cluster["insecure-skip-tls-verify"] = True
    elif configuration.ssl_ca_cert:
        cluster["certificate-authority"] = configuration.ssl_ca_cert
    for option, member in (("tls_server_name", "tls-server-name"), ("proxy", "proxy-url")):
        if getattr(configuration, option, None):
            cluster[member] = getattr(configuration, option)
    user: Dict[str, Any] = {}
    if configuration.cert_file:
        user["client-certificate"] = configuration.cert_file
    if configuration.key_file:
        user["client-key"] = configuration.key_file
    headers = {name.lower(): value for name, value in (default_headers or {}).items()}
    scheme, _, credential = (authorization or headers.get("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and credential:
        user["token"] = credential
    if headers.get("impersonate-user"):
        user["as"] = headers["impersonate-user"]
    if headers.get("impersonate-group"):
        user["as-groups"] = [headers["impersonate-group"]]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sandbox", "cluster": cluster}],
        "users": [{"name": "sandbox", "user": user}],
        "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "sandbox"}}],
        "current-context": "sandbox",
    }


def kubeconfig_of_client(api_client: Any) -> str:
    """The kubeconfig as text, with the client's current credentials."""
    import json

    configuration = api_client.configuration
    authorization = None
    for key in ("BearerToken", "authorization"):
        authorization = authorization or configuration.get_api_key_with_prefix(key)
    return json.dumps(kubeconfig_from_configuration(configuration, authorization, api_client.default_headers))
