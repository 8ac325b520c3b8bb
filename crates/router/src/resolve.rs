//! Decides where a request is sent. A pure function of the request and the index.

pub(crate) mod dns;
pub(crate) mod index;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agent_sandbox_protocol::address::{self, AddressClass};
use agent_sandbox_protocol::router_headers::SandboxRequest;

use crate::resolve::index::{LivePod, PodIndex};

/// How strictly addresses are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Every address must belong to the live Pod of the named Sandbox. Off only on explicit request.
    pub verify_targets: bool,
    /// Loopback addresses that a client names or a Pod reports are dialled (for tests, load drivers, and embedders
    /// whose [`Connector`](crate::Connector) does not dial from the router's own network).
    pub allow_loopback: bool,
}

/// Where a request is sent, after all checks.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub addr: SocketAddr,
    /// The Pod that owns the address; `None` only if unverified targets are allowed.
    pub pod: Option<Arc<LivePod>>,
}

/// What to do with a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Dial(Endpoint),
    /// Look up the Sandbox's Service in DNS; [`decide_by_dns_answer`] checks the answer.
    LookUp(String),
    /// No live Pod is known, and DNS is not used.
    Absent,
    Forbidden,
}

/// Chooses the endpoint: by address, then UID, then name, then DNS.
pub(crate) fn decide(
    request: &SandboxRequest,
    index: &PodIndex,
    verification: Verification,
    cluster_domain: Option<&str>,
) -> Decision {
    let (namespace, id) = (request.namespace.as_str(), request.id.as_str());
    let by_uid = request.uid_str().and_then(|uid| index.by_uid(namespace, uid));
    // A UID is not a capability: it must be the UID of the Sandbox that the request names.
    let foreign = match (&by_uid, request.uid_str()) {
        (Some(pod), _) => *pod.sandbox != *id,
        (None, Some(uid)) => index.knows_uid(uid) && index.by_name(namespace, id).is_some(),
        (None, None) => false,
    };
    if verification.verify_targets && foreign {
        return Decision::Forbidden;
    }
    if let Some(ip) = request.pod_ip {
        return decide_by_address(request, ip, by_uid, index, verification);
    }
    if let Some(pod) = by_uid {
        return dial(pod, request.port, verification);
    }
    match index.by_name(namespace, id) {
        Some(pod) if pod.name_routable => dial(pod, request.port, verification),
        _ => match cluster_domain {
            Some(domain) => Decision::LookUp(format!("{}.{}.svc.{domain}", request.id, request.namespace)),
            None => Decision::Absent,
        },
    }
}

fn decide_by_address(
    request: &SandboxRequest,
    ip: IpAddr,
    by_uid: Option<Arc<LivePod>>,
    index: &PodIndex,
    verification: Verification,
) -> Decision {
    let addr = SocketAddr::new(ip, request.port);
    let owner = by_uid.or_else(|| index.by_name(request.namespace.as_str(), request.id.as_str()));
    match owner {
        Some(pod) if pod.has_ip(ip) => Decision::Dial(Endpoint { addr, pod: Some(pod) }),
        _ if !verification.verify_targets => Decision::Dial(Endpoint { addr, pod: None }),
        _ if verification.allow_loopback && address::classify(ip) == AddressClass::Loopback => {
            Decision::Dial(Endpoint { addr, pod: None })
        }
        // The client's address may be older than the current Pod. Without a live Pod the request has to wait.
        None => Decision::Absent,
        // The client learnt this address before the Pod was replaced, and no other Pod has it now.
        Some(pod) if index.was_address_of(&pod.namespace, &pod.sandbox, ip) => dial(pod, request.port, verification),
        Some(_) => Decision::Forbidden,
    }
}

/// Checks a DNS answer for a Sandbox's Service.
pub(crate) fn decide_by_dns_answer(
    request: &SandboxRequest,
    answer: &[IpAddr],
    index: &PodIndex,
    verification: Verification,
) -> Decision {
    let answer = answer.iter().copied().map(address::canonical);
    if verification.verify_targets {
        let Some(pod) = index.by_name(request.namespace.as_str(), request.id.as_str()) else {
            return Decision::Forbidden;
        };
        return match answer.into_iter().find(|ip| pod.has_ip(*ip)) {
            Some(ip) => Decision::Dial(Endpoint { addr: SocketAddr::new(ip, request.port), pod: Some(pod) }),
            None => Decision::Forbidden,
        };
    }
    let permitted = |ip: &IpAddr| match address::classify(*ip) {
        AddressClass::Routable => true,
        AddressClass::Loopback => verification.allow_loopback,
        _ => false,
    };
    match answer.into_iter().find(permitted) {
        Some(ip) => Decision::Dial(Endpoint { addr: SocketAddr::new(ip, request.port), pod: None }),
        None => Decision::Forbidden,
    }
}

fn dial(pod: Arc<LivePod>, port: u16, verification: Verification) -> Decision {
    let allowed = |ip: &&IpAddr| verification.allow_loopback || address::classify(**ip) != AddressClass::Loopback;
    match pod.ips.iter().find(allowed) {
        Some(ip) => Decision::Dial(Endpoint { addr: SocketAddr::new(*ip, port), pod: Some(pod) }),
        None => Decision::Forbidden,
    }
}

#[cfg(test)]
mod tests;
