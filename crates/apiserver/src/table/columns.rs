//! Columns and cells of each built-in kind, as in Kubernetes. The file is long because it is a table.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cells, Column, age, column, pods};

/// Columns of priority 1 are shown only by `-o wide`.
macro_rules! columns {
    ($($name:literal),* ; $($wide:literal),*) => {
        vec![$(column($name, "string", 0),)* $(column($wide, "string", 1)),*]
    };
}

/// The cells of one object's row.
type RowFn = fn(&Value, Timestamp) -> Vec<Value>;

/// Columns and cells of a built-in kind. Kinds that are not listed show name and creation time.
pub(super) fn builtin(group: &str, plural: &str) -> (Vec<Column>, Cells) {
    let (columns, cells): (Vec<Column>, RowFn) = match (group, plural) {
        ("", "pods") => (
            columns!["Name", "Ready", "Status", "Restarts", "Age"; "IP", "Node", "Nominated Node", "Readiness Gates"],
            pods::cells,
        ),
        ("", "services") => {
            (columns!["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"; "Selector"], service)
        }
        ("", "endpoints") => (columns!["Name", "Endpoints", "Age";], endpoints),
        ("", "namespaces") => (columns!["Name", "Status", "Age";], namespace),
        ("", "nodes") => (
            columns!["Name", "Status", "Roles", "Age", "Version";
                "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"],
            node,
        ),
        ("", "events") | ("events.k8s.io", "events") => (event_columns(), event),
        ("", "configmaps") => (columns!["Name", "Data", "Age";], config_map),
        ("", "secrets") => (columns!["Name", "Type", "Data", "Age";], secret),
        ("", "serviceaccounts") => (columns!["Name", "Age";], name_age),
        ("", "persistentvolumeclaims") => (
            columns!["Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age";
                "VolumeMode"],
            volume_claim,
        ),
        ("", "persistentvolumes") => (
            columns!["Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass",
                "VolumeAttributesClass", "Reason", "Age"; "VolumeMode"],
            volume,
        ),
        ("", "resourcequotas") => (columns!["Name", "Request", "Limit", "Age";], quota),
        ("apps", "deployments") => (
            columns!["Name", "Ready", "Up-to-date", "Available", "Age"; "Containers", "Images", "Selector"],
            deployment,
        ),
        ("apps", "replicasets") => {
            (columns!["Name", "Desired", "Current", "Ready", "Age"; "Containers", "Images", "Selector"], replica_set)
        }
        ("apps", "statefulsets") => (columns!["Name", "Ready", "Age"; "Containers", "Images"], stateful_set),
        ("apps", "daemonsets") => (
            columns!["Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age";
                "Containers", "Images", "Selector"],
            daemon_set,
        ),
        ("coordination.k8s.io", "leases") => (columns!["Name", "Holder", "Age";], lease),
        ("discovery.k8s.io", "endpointslices") => {
            (columns!["Name", "AddressType", "Ports", "Endpoints", "Age";], slice)
        }
        ("networking.k8s.io", "networkpolicies") => (columns!["Name", "Pod-Selector", "Age";], network_policy),
        ("node.k8s.io", "runtimeclasses") => (columns!["Name", "Handler", "Age";], runtime_class),
        ("policy", "poddisruptionbudgets") => {
            (columns!["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age";], disruption_budget)
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            (columns!["Name", "Role", "Age"; "Users", "Groups", "ServiceAccounts"], role_binding)
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            (columns!["Name", "Value", "Global-Default", "Age", "PreemptionPolicy";], priority_class)
        }
        ("storage.k8s.io", "storageclasses") => (
            columns!["Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age";],
            storage_class,
        ),
        _ => (columns!["Name", "Created At";], name_created),
    };
    (columns, Box::new(cells))
}

fn event_columns() -> Vec<Column> {
    let wide = ["Subobject", "Source", "First Seen", "Count", "Name"];
    let names =
        ["Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"];
    names.iter().map(|name| column(name, "string", i64::from(wide.contains(name)))).collect()
}

fn name(object: &Value) -> Value {
    object["metadata"]["name"].clone()
}

fn created(object: &Value, now: Timestamp) -> Value {
    age::of(&object["metadata"]["creationTimestamp"], now).into()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn text_or(value: &Value, otherwise: &str) -> String {
    match text(value) {
        "" => otherwise.to_owned(),
        found => found.to_owned(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

/// `a=b,c=d`, or `<none>`.
fn labels(value: &Value) -> String {
    let pairs: Vec<String> =
        value.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={}", text(value))).collect();
    if pairs.is_empty() { "<none>".into() } else { pairs.join(",") }
}

/// A label selector in the form that `-l` takes.
fn selector(value: &Value) -> String {
    let mut parts: Vec<String> = value["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    for expression in list(&value["matchExpressions"]) {
        let key = text(&expression["key"]);
        let values = list(&expression["values"]).iter().map(text).collect::<Vec<_>>().join(",");
        parts.push(match text(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() { "<none>".into() } else { parts.join(",") }
}

/// The first three items and the number of the others.
fn first_three(items: &[String], empty: &str) -> String {
    match items.len() {
        0 => empty.to_owned(),
        1..=3 => items.join(","),
        more => format!("{} + {} more...", items[..3].join(","), more - 3),
    }
}

fn name_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), created(object, now)]
}

fn name_created(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), text_or(&object["metadata"]["creationTimestamp"], "<unknown>").into()]
}

fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), object["status"]["phase"].clone(), created(object, now)]
}

fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    let members = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    vec![name(object), (members("data") + members("binaryData")).into(), created(object, now)]
}

fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    let members = object["data"].as_object().map_or(0, serde_json::Map::len);
    vec![name(object), object["type"].clone(), members.into(), created(object, now)]
}

fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let ports: Vec<String> = list(&spec["ports"])
        .iter()
        .map(|port| {
            let protocol = text_or(&port["protocol"], "TCP");
            match count(&port["nodePort"]) {
                0 => format!("{}/{protocol}", count(&port["port"])),
                node => format!("{}:{node}/{protocol}", count(&port["port"])),
            }
        })
        .collect();
    let cluster_ip = match text(&spec["clusterIPs"][0]) {
        "" => text_or(&spec["clusterIP"], "<none>"),
        ip => ip.to_owned(),
    };
    vec![
        name(object),
        spec["type"].clone(),
        cluster_ip.into(),
        external_ip(object).into(),
        if ports.is_empty() { "<none>".into() } else { ports.join(",").into() },
        created(object, now),
        labels(&spec["selector"]).into(),
    ]
}

fn external_ip(service: &Value) -> String {
    let spec = &service["spec"];
    let mut addresses: Vec<String> = list(&spec["externalIPs"]).iter().map(|ip| text(ip).to_owned()).collect();
    match text(&spec["type"]) {
        "ExternalName" => return text(&spec["externalName"]).to_owned(),
        "LoadBalancer" => {
            let ingress = list(&service["status"]["loadBalancer"]["ingress"]).iter();
            let given = ingress
                .map(|point| text_or(&point["ip"], text(&point["hostname"])))
                .filter(|address| !address.is_empty());
            addresses.splice(0..0, given);
            if addresses.is_empty() {
                return "<pending>".into();
            }
        }
        _ => {}
    }
    if addresses.is_empty() { "<none>".into() } else { addresses.join(",") }
}

fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut found = Vec::new();
    for subset in list(&object["subsets"]) {
        let addresses = || list(&subset["addresses"]).iter().map(|address| text(&address["ip"]));
        if list(&subset["ports"]).is_empty() {
            found.extend(addresses().map(str::to_owned));
        }
        for port in list(&subset["ports"]) {
            let host = |ip: &str| if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            found.extend(addresses().map(|ip| format!("{}:{}", host(ip), count(&port["port"]))));
        }
    }
    vec![name(object), first_three(&found, "<none>").into(), created(object, now)]
}

fn slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(&object["ports"])
        .iter()
        .map(|port| port["port"].as_i64().map_or_else(|| text_or(&port["name"], "*"), |number| number.to_string()))
        .collect();
    let addresses: Vec<String> = list(&object["endpoints"])
        .iter()
        .flat_map(|endpoint| list(&endpoint["addresses"]))
        .map(|address| text(address).to_owned())
        .collect();
    vec![
        name(object),
        object["addressType"].clone(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        created(object, now),
    ]
}

fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = list(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == "Ready");
    let mut status = match ready.map(|condition| condition["status"] == "True") {
        Some(true) => "Ready".to_owned(),
        Some(false) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let roles: Vec<&str> = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()))
        .collect();
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let found = list(&object["status"]["addresses"]).iter().find(|address| address["type"] == kind);
        found.map_or_else(|| "<none>".to_owned(), |address| text(&address["address"]).to_owned())
    };
    let info = &object["status"]["nodeInfo"];
    let mut kernel = text_or(&info["kernelVersion"], "<unknown>");
    if let Some(architecture) = info["architecture"].as_str().filter(|architecture| !architecture.is_empty()) {
        kernel.push_str(&format!(" ({architecture})"));
    }
    vec![
        name(object),
        status.into(),
        roles.into(),
        created(object, now),
        text(&info["kubeletVersion"]).into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        text_or(&info["osImage"], "<unknown>").into(),
        kernel.into(),
        text_or(&info["containerRuntimeVersion"], "<unknown>").into(),
    ]
}

/// Events of the core group and of events.k8s.io, which names the fields differently.
fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let either = |core: &str, newer: &str| if object[core].is_null() { &object[newer] } else { &object[core] };
    let about = either("involvedObject", "regarding");
    let first_time = either("firstTimestamp", "deprecatedFirstTimestamp");
    let first = age::of(if first_time.is_null() { &object["eventTime"] } else { first_time }, now);
    let last_time = either("lastTimestamp", "deprecatedLastTimestamp");
    let series = &object["series"];
    let last = match (series.is_object(), last_time.is_null()) {
        (true, _) => age::of(&series["lastObservedTime"], now),
        (false, true) => first.clone(),
        (false, false) => age::of(last_time, now),
    };
    let times =
        if series.is_object() { count(&series["count"]) } else { count(either("count", "deprecatedCount")).max(1) };
    let kind = text(&about["kind"]).to_lowercase();
    let target = match text(&about["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = either("source", "deprecatedSource");
    let component =
        text_or(&source["component"], &text_or(&object["reportingComponent"], text(&object["reportingController"])));
    let host = text_or(&source["host"], text(&object["reportingInstance"]));
    let source = if host.is_empty() { component } else { format!("{component}, {host}") };
    vec![
        last.into(),
        object["type"].clone(),
        object["reason"].clone(),
        target.into(),
        text(&about["fieldPath"]).into(),
        source.into(),
        text(either("message", "note")).trim().into(),
        first.into(),
        times.to_string().into(),
        name(object),
    ]
}

/// Abbreviated access modes without duplicates: `RWO,ROX`.
fn access_modes(value: &Value) -> String {
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let modes = list(value);
    let short: Vec<&str> =
        known.iter().filter(|(long, _)| modes.iter().any(|mode| mode == long)).map(|(_, short)| *short).collect();
    short.join(",")
}

fn phase(object: &Value) -> Value {
    match object["metadata"]["deletionTimestamp"].is_null() {
        true => object["status"]["phase"].clone(),
        false => "Terminating".into(),
    }
}

fn volume_claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let bound = !text(&spec["volumeName"]).is_empty();
    vec![
        name(object),
        phase(object),
        text(&spec["volumeName"]).into(),
        if bound { text_or(&status["capacity"]["storage"], "0").into() } else { "".into() },
        if bound { access_modes(&status["accessModes"]).into() } else { "".into() },
        text(&spec["storageClassName"]).into(),
        text_or(&spec["volumeAttributesClassName"], "<unset>").into(),
        created(object, now),
        text_or(&spec["volumeMode"], "<unset>").into(),
    ]
}

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let claim = match spec["claimRef"].is_object() {
        true => format!("{}/{}", text(&spec["claimRef"]["namespace"]), text(&spec["claimRef"]["name"])),
        false => String::new(),
    };
    vec![
        name(object),
        text_or(&spec["capacity"]["storage"], "0").into(),
        access_modes(&spec["accessModes"]).into(),
        spec["persistentVolumeReclaimPolicy"].clone(),
        phase(object),
        claim.into(),
        text(&spec["storageClassName"]).into(),
        text_or(&spec["volumeAttributesClassName"], "<unset>").into(),
        text(&object["status"]["reason"]).into(),
        created(object, now),
        text_or(&spec["volumeMode"], "<unset>").into(),
    ]
}

fn quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (hard, used) = (&object["status"]["hard"], &object["status"]["used"]);
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, limit) in hard.as_object().into_iter().flatten() {
        let line = format!("{resource}: {}/{}", text_or(&used[resource], "0"), text(limit));
        if resource.starts_with("limits.") { limits.push(line) } else { requests.push(line) }
    }
    vec![name(object), requests.join(", ").into(), limits.join(", ").into(), created(object, now)]
}

/// Names and images of a workload's containers.
fn containers(object: &Value) -> [Value; 2] {
    let containers = list(&object["spec"]["template"]["spec"]["containers"]);
    let all = |field: &str| containers.iter().map(|container| text(&container[field])).collect::<Vec<_>>().join(",");
    [all("name").into(), all("image").into()]
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(object);
    vec![
        name(object),
        format!("{}/{}", count(&status["readyReplicas"]), spec["replicas"].as_i64().unwrap_or(1)).into(),
        count(&status["updatedReplicas"]).into(),
        count(&status["availableReplicas"]).into(),
        created(object, now),
        names,
        images,
        selector(&spec["selector"]).into(),
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(object);
    vec![
        name(object),
        spec["replicas"].as_i64().unwrap_or(1).into(),
        count(&status["replicas"]).into(),
        count(&status["readyReplicas"]).into(),
        created(object, now),
        names,
        images,
        selector(&spec["selector"]).into(),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready =
        format!("{}/{}", count(&object["status"]["readyReplicas"]), object["spec"]["replicas"].as_i64().unwrap_or(1));
    let [names, images] = containers(object);
    vec![name(object), ready.into(), created(object, now), names, images]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(object);
    let mut cells = vec![name(object)];
    let counts = [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ];
    cells.extend(counts.map(|field| Value::from(count(&status[field]))));
    cells.push(labels(&spec["template"]["spec"]["nodeSelector"]).into());
    cells.extend([created(object, now), names, images, selector(&spec["selector"]).into()]);
    cells
}

fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(&object["spec"]["holderIdentity"]).into(), created(object, now)]
}

fn network_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), selector(&object["spec"]["podSelector"]).into(), created(object, now)]
}

fn runtime_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), object["handler"].clone(), created(object, now)]
}

fn disruption_budget(object: &Value, now: Timestamp) -> Vec<Value> {
    let amount = |value: &Value| match value {
        Value::Null => "N/A".to_owned(),
        Value::String(percent) => percent.clone(),
        other => other.to_string(),
    };
    let spec = &object["spec"];
    vec![
        name(object),
        amount(&spec["minAvailable"]).into(),
        amount(&spec["maxUnavailable"]).into(),
        count(&object["status"]["disruptionsAllowed"]).into(),
        created(object, now),
    ]
}

fn role_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let named = list(&object["subjects"]).iter().filter(|subject| subject["kind"] == kind).map(|subject| {
            match subject["namespace"].as_str().filter(|_| kind == "ServiceAccount") {
                Some(namespace) => format!("{namespace}/{}", text(&subject["name"])),
                None => text(&subject["name"]).to_owned(),
            }
        });
        Value::from(named.collect::<Vec<_>>().join(", "))
    };
    let role = format!("{}/{}", text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"]));
    vec![
        name(object),
        role.into(),
        created(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn priority_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        count(&object["value"]).into(),
        json!(object["globalDefault"] == true),
        created(object, now),
        text_or(&object["preemptionPolicy"], "PreemptLowerPriority").into(),
    ]
}

fn storage_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let default = object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
    let suffix = if default { " (default)" } else { "" };
    vec![
        format!("{}{suffix}", text(&object["metadata"]["name"])).into(),
        object["provisioner"].clone(),
        text_or(&object["reclaimPolicy"], "Delete").into(),
        text_or(&object["volumeBindingMode"], "Immediate").into(),
        json!(object["allowVolumeExpansion"] == true),
        created(object, now),
    ]
}
