//! The cells of a Pod. The status column summarises phase, init containers and containers in one word.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let status = &pod["status"];
    let or_none = |value: &Value| match value.as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => "<none>".into(),
    };
    let restarts = match &summary.last_restart {
        Some(last) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, age::since(*last, now)),
        _ => summary.restarts.to_string(),
    };
    let ip = match status["podIPs"][0]["ip"].as_str() {
        Some(ip) => ip.to_owned(),
        None => or_none(&status["podIP"]),
    };
    vec![
        pod["metadata"]["name"].clone(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age::of(&pod["metadata"]["creationTimestamp"], now).into(),
        ip.into(),
        or_none(&pod["spec"]["nodeName"]).into(),
        or_none(&status["nominatedNodeName"]).into(),
        readiness_gates(pod).into(),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates.iter().filter(|gate| condition(pod, gate["conditionType"].as_str().unwrap_or_default())).count();
    format!("{met}/{}", gates.len())
}

fn condition(pod: &Value, wanted: &str) -> bool {
    list(&pod["status"]["conditions"]).iter().any(|found| found["type"] == wanted && found["status"] == "True")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut reason = text(&status["phase"]);
        if let Some(given) = status["reason"].as_str().filter(|given| !given.is_empty()) {
            reason = given.to_owned();
        }
        let gated = json!({"type": "PodScheduled", "reason": "SchedulingGated"});
        if list(&status["conditions"])
            .iter()
            .any(|found| found["type"] == gated["type"] && found["reason"] == gated["reason"])
        {
            reason = "SchedulingGated".into();
        }
        let sidecars = list(&pod["spec"]["initContainers"]).iter().filter(|container| is_sidecar(container)).count();
        let total = list(&pod["spec"]["containers"]).len() + sidecars;
        let mut summary = Self { reason, ready: 0, total, restarts: 0, last_restart: None };
        let initializing = summary.add_init_containers(pod);
        if !initializing || condition(pod, "Initialized") {
            summary.add_containers(pod);
        }
        let terminal = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            if status["reason"] == "NodeLost" {
                summary.reason = "Unknown".into();
            } else if !terminal {
                summary.reason = "Terminating".into();
            }
        }
        summary
    }

    /// Returns true if an init container still blocks the others; the reason is then that of the init container.
    fn add_init_containers(&mut self, pod: &Value) -> bool {
        let specs = list(&pod["spec"]["initContainers"]);
        let mut of_sidecars = (0, None);
        let mut blocked = false;
        for (index, container) in list(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
            let sidecar = specs.iter().any(|spec| spec["name"] == container["name"] && is_sidecar(spec));
            self.add_restarts(container);
            if sidecar {
                of_sidecars.0 += container["restartCount"].as_i64().unwrap_or_default();
                of_sidecars.1 = of_sidecars.1.max(last_end(container));
            }
            let state = &container["state"];
            if state["terminated"].is_object() && state["terminated"]["exitCode"] == 0 {
                continue;
            }
            if sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            let waiting =
                state["waiting"]["reason"].as_str().filter(|why| !why.is_empty() && *why != "PodInitializing");
            self.reason = match waiting {
                _ if state["terminated"].is_object() => format!("Init:{}", end_reason(&state["terminated"])),
                Some(why) => format!("Init:{why}"),
                None => format!("Init:{index}/{}", specs.len()),
            };
            blocked = true;
            break;
        }
        if !blocked || condition(pod, "Initialized") {
            // Restarts of completed init containers no longer count.
            (self.restarts, self.last_restart) = of_sidecars;
        }
        blocked
    }

    fn add_containers(&mut self, pod: &Value) {
        let (mut running, mut failure) = (false, None);
        for container in list(&pod["status"]["containerStatuses"]).iter().rev() {
            self.add_restarts(container);
            let state = &container["state"];
            if let Some(why) = state["waiting"]["reason"].as_str().filter(|why| !why.is_empty()) {
                self.reason = why.to_owned();
            } else if state["terminated"].is_object() {
                self.reason = end_reason(&state["terminated"]);
                if state["terminated"]["exitCode"] != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            // A completed container does not determine the status while others run or have failed.
            match (running, failure) {
                (true, _) if condition(pod, "Ready") => self.reason = "Running".into(),
                (_, Some(failure)) => self.reason = failure,
                (true, None) => self.reason = "NotReady".into(),
                (false, None) => {}
            }
        }
    }

    fn add_restarts(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        self.last_restart = self.last_restart.max(last_end(container));
    }
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn last_end(container: &Value) -> Option<Timestamp> {
    container["lastState"]["terminated"]["finishedAt"].as_str()?.parse().ok()
}

fn end_reason(terminated: &Value) -> String {
    match (terminated["reason"].as_str(), terminated["signal"].as_i64()) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or_default()),
    }
}
