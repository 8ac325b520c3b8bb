//! The paths and query parameters that a control plane uses for requests to a kubelet. Pure.

use agent_sandbox_streams::server::StreamKind;

/// The route of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Route {
    Healthz,
    Pods,
    Stream { kind: StreamKind, namespace: String, pod: String, container: Option<String> },
}

/// Parses a path. `exec`, `attach` and `portForward` may have the Pod's uid before the last segment.
pub(super) fn route(path: &str) -> Option<Route> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let stream = |kind, namespace: &str, pod: &str, container: Option<&str>| {
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Some(Route::Stream { kind, namespace, pod, container: container.map(str::to_owned) })
    };
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    match parts[..] {
        ["healthz"] => Some(Route::Healthz),
        ["pods"] => Some(Route::Pods),
        ["containerLogs", namespace, pod, container] => stream(StreamKind::Log, namespace, pod, Some(container)),
        ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
            stream(StreamKind::Exec, namespace, pod, Some(container))
        }
        ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
            stream(StreamKind::Attach, namespace, pod, Some(container))
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
            stream(StreamKind::PortForward, namespace, pod, None)
        }
        _ => None,
    }
}

/// Translates query parameters to those of the API: a control plane sends `input`, `output`, `error` and `port` to
/// kubelets.
pub(super) fn translate(query: Option<&str>, container: Option<&str>) -> String {
    let parameters = query.unwrap_or_default().split('&').filter(|p| !p.is_empty());
    let mut out: Vec<String> = parameters
        .filter(|parameter| !parameter.starts_with("container="))
        .map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let name = match name {
                "input" => "stdin",
                "output" => "stdout",
                "error" => "stderr",
                // Sent by WebSocket clients, which list the ports in the request.
                "port" => "ports",
                other => other,
            };
            format!("{name}={value}")
        })
        .collect();
    // Container names are DNS labels and need no escaping.
    out.extend(container.map(|container| format!("container={container}")));
    out.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_control_plane_are_parsed() {
        let stream = |kind, container: Option<&str>| {
            let container = container.map(str::to_owned);
            Some(Route::Stream { kind, namespace: "ns".into(), pod: "p".into(), container })
        };
        assert_eq!(route("/containerLogs/ns/p/c"), stream(StreamKind::Log, Some("c")));
        assert_eq!(route("/exec/ns/p/c"), stream(StreamKind::Exec, Some("c")));
        assert_eq!(route("/exec/ns/p/uid/c"), stream(StreamKind::Exec, Some("c")));
        assert_eq!(route("/attach/ns/p/c"), stream(StreamKind::Attach, Some("c")));
        assert_eq!(route("/portForward/ns/p"), stream(StreamKind::PortForward, None));
        assert_eq!(route("/healthz"), Some(Route::Healthz));
        for path in ["/", "/run/ns/p/c", "/exec/ns", "/exec//p/c", "/containerLogs/ns/p/c/d"] {
            assert_eq!(route(path), None, "{path}");
        }
    }

    #[test]
    fn parameters_are_translated_to_those_of_the_api() {
        let query = translate(Some("command=sh&command=-c&input=1&output=1&error=1&tty=1&container=evil"), Some("c"));
        assert_eq!(query, "command=sh&command=-c&stdin=1&stdout=1&stderr=1&tty=1&container=c");
        assert_eq!(translate(Some("port=80%2C443"), None), "ports=80%2C443");
        assert_eq!(translate(None, Some("c")), "container=c");
    }
}
