//! Decides where a request goes. Pure: what the index knows goes in, a decision comes out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agent_sandbox_protocol::address::{self, AddressClass};
use agent_sandbox_protocol::router_headers::SandboxRequest;

use crate::connect::Target;
use crate::index::{LivePod, PodIndex};

/// How far addresses are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Every address must belong to the live Pod of the named Sandbox. Off only on explicit request.
    pub verify_targets: bool,
    /// Loopback addresses named by a client or published by a Pod are dialled as they are (tests, load drivers, and
    /// embedders whose [`Connect`](crate::Connect) does not dial from the router's own network).
    pub allow_loopback: bool,
}

/// What to do with a request.
#[derive(Debug)]
pub(crate) enum Decision {
    Dial(Target),
    /// Ask DNS for the Sandbox's Service; the answer is judged by [`judge_dns_answer`].
    LookUp(String),
    /// No live Pod is known and DNS is not used here.
    Absent,
    Forbidden,
}

/// Chooses the target: named address, then UID, then name, then DNS.
pub(crate) fn decide(
    request: &SandboxRequest,
    index: &PodIndex,
    verification: Verification,
    cluster_domain: Option<&str>,
) -> Decision {
    let (namespace, id) = (request.namespace.as_str(), request.id.as_str());
    let by_uid = request.uid_str().and_then(|uid| index.by_uid(namespace, uid));
    // A UID is not a capability: it must not be the UID of another Sandbox than the one that the request names.
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
        Some(pod) if pod.has_ip(ip) => Decision::Dial(Target { addr, pod: Some(pod) }),
        _ if !verification.verify_targets => Decision::Dial(Target { addr, pod: None }),
        _ if verification.allow_loopback && address::classify(ip) == AddressClass::Loopback => {
            Decision::Dial(Target { addr, pod: None })
        }
        // The client's knowledge may be older than the Pod: without any live Pod it has to wait like everyone else.
        None => Decision::Absent,
        // Learnt before the Pod was replaced, and nobody else's now: the client means this Sandbox.
        Some(pod) if index.was_address_of(&pod.namespace, &pod.sandbox, ip) => dial(pod, request.port, verification),
        Some(_) => Decision::Forbidden,
    }
}

/// Judges what DNS said about a Sandbox's Service.
pub(crate) fn judge_dns_answer(
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
            Some(ip) => Decision::Dial(Target { addr: SocketAddr::new(ip, request.port), pod: Some(pod) }),
            None => Decision::Forbidden,
        };
    }
    let permitted = |ip: &IpAddr| match address::classify(*ip) {
        AddressClass::Routable => true,
        AddressClass::Loopback => verification.allow_loopback,
        _ => false,
    };
    match answer.into_iter().find(permitted) {
        Some(ip) => Decision::Dial(Target { addr: SocketAddr::new(ip, request.port), pod: None }),
        None => Decision::Forbidden,
    }
}

fn dial(pod: Arc<LivePod>, port: u16, verification: Verification) -> Decision {
    let dialable = |ip: &&IpAddr| verification.allow_loopback || address::classify(**ip) != AddressClass::Loopback;
    match pod.ips.iter().find(dialable) {
        Some(ip) => Decision::Dial(Target { addr: SocketAddr::new(*ip, port), pod: Some(pod) }),
        None => Decision::Forbidden,
    }
}

#[cfg(test)]
mod tests;
