//! Which call a request makes. Calls of E2B's API that have no meaning here are known, too: they answer 501 with the
//! reason, where an unknown path answers 404.

use http::Method;
use percent_encoding::percent_decode_str;

/// Which generation of the API a client speaks; defaults differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    V1,
    V2,
}

/// A call, with the names in its path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Create(Generation),
    List(Generation),
    Get(String),
    Kill(String),
    Connect(String),
    Pause(String),
    Timeout(String),
    Refresh(String),
    Metrics(String),
    Logs(Generation, String),
    Network(String),
    Snapshot(String),
    Snapshots,
    Fork(String),
    DeleteTemplate(String),
    Templates,
    Alias(String),
    Health,
    /// Part of E2B's API, but not of this one.
    Unsupported(&'static str),
    Method,
    Unknown,
}

pub(crate) const BUILDS: &str = "template builds are not supported yet; create a SandboxTemplate with kubectl or \
                      `agent-sandbox template create NAME --image IMAGE` and use its name";
const VOLUMES: &str = "volumes are not supported yet; give a SandboxTemplate a PersistentVolumeClaim";
const SECRETS: &str = "secrets are not supported yet; use Secrets of the cluster in a SandboxTemplate";
const TEAMS: &str = "there are no teams here: a key belongs to a ServiceAccount (`agent-sandbox token list`)";

impl Route {
    /// The call of a method and a path below the API's prefix, still encoded.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        let segments: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let id = |id: &&str| (*id).to_owned();
        match (method.as_str(), parts.as_slice()) {
            ("GET", ["health"]) => Self::Health,
            ("POST", ["v2", "sandboxes"]) => Self::Create(Generation::V2),
            ("POST", ["sandboxes"]) => Self::Create(Generation::V1),
            ("GET", ["v2", "sandboxes"]) => Self::List(Generation::V2),
            ("GET", ["sandboxes"]) => Self::List(Generation::V1),
            ("GET", ["sandboxes", "metrics"]) => {
                Self::Unsupported("metrics of several sandboxes are not supported; ask for one sandbox at a time")
            }
            ("GET", ["sandboxes", name]) => Self::Get(id(name)),
            ("DELETE", ["sandboxes", name]) => Self::Kill(id(name)),
            ("POST", ["v2", "sandboxes", name, "connect"] | ["sandboxes", name, "connect" | "resume"]) => {
                Self::Connect(id(name))
            }
            ("POST", ["sandboxes", name, "pause"]) => Self::Pause(id(name)),
            ("POST", ["sandboxes", name, "timeout"]) => Self::Timeout(id(name)),
            ("POST", ["sandboxes", name, "refreshes"]) => Self::Refresh(id(name)),
            ("GET", ["sandboxes", name, "metrics"]) => Self::Metrics(id(name)),
            ("GET", ["sandboxes", name, "logs"]) => Self::Logs(Generation::V1, id(name)),
            ("GET", ["v2", "sandboxes", name, "logs"]) => Self::Logs(Generation::V2, id(name)),
            ("PUT", ["sandboxes", name, "network"]) => Self::Network(id(name)),
            ("GET", ["templates"] | ["v2", "templates"]) => Self::Templates,
            ("GET", ["templates", "aliases", name]) => Self::Alias(id(name)),
            ("POST", ["sandboxes", name, "snapshots"]) => Self::Snapshot(id(name)),
            ("GET", ["snapshots"]) => Self::Snapshots,
            ("POST", ["sandboxes", name, "fork"]) => Self::Fork(id(name)),
            ("DELETE", ["templates", name]) if *name != "tags" => Self::DeleteTemplate(id(name)),
            (_, ["templates", ..] | ["v2" | "v3", "templates", ..]) => Self::Unsupported(BUILDS),
            (_, ["volumes", ..]) => Self::Unsupported(VOLUMES),
            (_, ["secrets", ..]) => Self::Unsupported(SECRETS),
            (_, ["teams" | "api-keys" | "access-tokens" | "nodes" | "admin", ..]) => Self::Unsupported(TEAMS),
            (_, ["sandboxes", ..] | ["v2", "sandboxes", ..]) => Self::Method,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> Route {
        Route::of(&Method::from_bytes(method.as_bytes()).unwrap(), path)
    }

    /// E-025, E-030, E-031, E-126
    #[test]
    fn both_generations_lead_to_the_same_calls() {
        assert_eq!(of("POST", "/v2/sandboxes"), Route::Create(Generation::V2));
        assert_eq!(of("POST", "/sandboxes/"), Route::Create(Generation::V1));
        for path in ["/sandboxes/a/connect", "/v2/sandboxes/a/connect", "/sandboxes/a/resume", "//sandboxes/a/connect"]
        {
            assert_eq!(of("POST", path), Route::Connect("a".into()), "{path}");
        }
        assert_eq!(of("GET", "/templates/aliases/team%2Fname%3Atag"), Route::Alias("team/name:tag".into()));
        assert_eq!(of("GET", "/sandboxes/a%2Fb"), Route::Get("a/b".into()), "a slash in a name is not a path");
        assert_eq!(of("POST", "/sandboxes/a/fork"), Route::Fork("a".into()));
        assert_eq!(of("POST", "/sandboxes/a/snapshots"), Route::Snapshot("a".into()));
        assert!(matches!(of("POST", "/v3/templates"), Route::Unsupported(_)));
        assert!(matches!(of("DELETE", "/templates/tags"), Route::Unsupported(_)));
        assert_eq!(of("DELETE", "/templates/x%3Adefault"), Route::DeleteTemplate("x:default".into()));
        assert_eq!(of("PATCH", "/sandboxes/a"), Route::Method);
        assert_eq!(of("GET", "/elsewhere"), Route::Unknown);
    }
}
