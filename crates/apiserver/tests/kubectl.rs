//! Runs the real kubectl against a server over TLS and compares its whole output with snapshots.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use support::{Cluster, kubectl, root};

/// Compares a command's exit code and whole output with the snapshot of that name.
macro_rules! snapshot {
    ($name:literal, $output:expr) => {
        kubectl::filters().bind(|| insta::assert_snapshot!($name, $output.transcript()))
    };
}

/// Manifests of every kind in both versions.
const SANDBOX_BETA: &str = "
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: box, labels: {team: blue}}
spec:
  podTemplate:
    spec:
      containers:
      - {name: main, image: host, command: [sleep, inf]}
";
const SANDBOX_ALPHA: &str = "
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: old-box}
spec:
  replicas: 0
  podTemplate:
    spec:
      containers:
      - {name: main, image: host}
";
const TEMPLATE_BETA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: shape}
spec:
  podTemplate:
    spec:
      containers:
      - {name: main, image: host}
";
const TEMPLATE_ALPHA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxTemplate
metadata: {name: old-shape}
spec:
  podTemplate:
    spec:
      containers:
      - name: main
        image: host
        ports: [{containerPort: 8888}]
        readinessProbe:
          httpGet: {path: /, port: 8888}
      restartPolicy: OnFailure
";
const POOL_BETA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: pool}
spec:
  replicas: 2
  sandboxTemplateRef: {name: shape}
";
const POOL_ALPHA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata: {name: old-pool}
spec:
  replicas: 1
  sandboxTemplateRef: {name: shape}
";
const CLAIM_BETA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: claim}
spec:
  warmPoolRef: {name: pool}
";
const CLAIM_ALPHA: &str = "
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: old-claim}
spec:
  sandboxTemplateRef: {name: shape}
";

const ALL: [&str; 8] =
    [SANDBOX_BETA, SANDBOX_ALPHA, TEMPLATE_BETA, TEMPLATE_ALPHA, POOL_BETA, POOL_ALPHA, CLAIM_BETA, CLAIM_ALPHA];

/// A cluster with the product's four CRDs.
fn with_crds() -> Cluster {
    let cluster = Cluster::start_blocking();
    let folder = root().join("deploy/crds");
    cluster.kubectl_ok(&["apply", "-f", folder.to_str().unwrap()]);
    cluster
}

fn with_objects(manifests: &[&str]) -> Cluster {
    let cluster = with_crds();
    let output = apply(&cluster, &manifests.join("---"));
    assert_eq!(output.code, 0, "{}", output.transcript());
    cluster
}

fn apply(cluster: &Cluster, manifest: &str) -> kubectl::Output {
    cluster.kubectl_with_input(&["apply", "-f", "-"], manifest)
}

/// Sets the Ready condition as a controller would.
fn set_ready(cluster: &Cluster, name: &str, status: &str) {
    let patch = format!(
        r#"{{"status":{{"conditions":[{{"type":"Ready","status":"{status}","reason":"DependenciesReady","message":"","lastTransitionTime":"2024-01-01T00:00:00Z"}}]}}}}"#
    );
    cluster.kubectl_ok(&["patch", "sandbox", name, "--subresource=status", "--type=merge", "-p", &patch]);
}

/// D-226: client-side apply with validation, of the CRDs themselves and of every kind in both versions.
#[test]
fn apply_creates_configures_and_leaves_alone() {
    if kubectl::missing() {
        return;
    }
    let cluster = Cluster::start_blocking();
    let folder = root().join("deploy/crds");
    let folder = folder.to_str().unwrap();
    snapshot!("apply_crds", cluster.kubectl(&["apply", "-f", folder]));
    snapshot!("apply_crds_again", cluster.kubectl(&["apply", "-f", folder]));
    let all = ALL.join("---");
    snapshot!("apply_all_kinds", apply(&cluster, &all));
    snapshot!("apply_all_kinds_again", apply(&cluster, &all));
    snapshot!("apply_changed", apply(&cluster, &POOL_BETA.replace("replicas: 2", "replicas: 5")));
    snapshot!(
        "apply_unknown_field",
        apply(&cluster, &SANDBOX_BETA.replace("podTemplate:", "colour: red\n  podTemplate:"))
    );
    snapshot!("apply_wrong_type", apply(&cluster, &POOL_BETA.replace("replicas: 2", "replicas: many")));
    snapshot!("get_all_kinds", cluster.kubectl(&["get", "sandboxes,sandboxtemplates,sandboxwarmpools,sandboxclaims"]));
}

/// The manifests of the upstream documentation, unchanged.
#[test]
fn published_manifests_apply_word_for_word() {
    if kubectl::missing() {
        return;
    }
    let seeds = root().parent().expect("a folder above").join("shared/seeds");
    if !seeds.is_dir() {
        println!(
            "skipped: the source documents are not beside the project; `apply_creates_configures_and_leaves_alone` runs always"
        );
        return;
    }
    let cluster = with_crds();
    let read = |name: &str| std::fs::read_to_string(seeds.join(name)).unwrap();
    let guide = read("000_568cb0ff45809bb2.txt");
    let template = guide.split("<<'EOF'\n").nth(1).and_then(|rest| rest.split("\nEOF").next()).unwrap();
    snapshot!("seed_template", cluster.kubectl_with_input(&["apply", "-n", "default", "-f", "-"], template));
    let overview = read("004_152e2b7cda6b218c.txt");
    let start = "apiVersion: agents.x-k8s.io/v1alpha1\nkind: Sandbox\n";
    let sandboxes: Vec<&str> = overview
        .match_indices(start)
        .map(|(at, _)| {
            let text = &overview[at..];
            let end = text.find("\n\n").into_iter().chain(text.find("\nkubectl")).min().unwrap();
            &text[..end]
        })
        .collect();
    assert_eq!(sandboxes.len(), 3);
    for sandbox in sandboxes {
        let output = apply(&cluster, sandbox);
        assert_eq!(output.code, 0, "{sandbox}\n{}", output.transcript());
    }
    snapshot!("seed_get", cluster.kubectl(&["get", "sandbox,sandboxtemplate"]));
}

/// D-228: the columns of each kind, and every output form.
#[test]
fn get_shows_columns_and_other_forms() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA]);
    set_ready(&cluster, "box", "True");
    snapshot!("get_sandbox", cluster.kubectl(&["get", "sandbox"]));
    snapshot!("get_sandbox_wide", cluster.kubectl(&["get", "sandbox", "-o", "wide", "--show-labels"]));
    snapshot!("get_sandbox_everywhere", cluster.kubectl(&["get", "sandbox", "-A"]));
    snapshot!(
        "get_sandbox_yaml",
        cluster.kubectl(&["get", "sandbox", "box", "-o", "yaml", "--show-managed-fields=false"])
    );
    let path = "jsonpath={.status.conditions[0].type}={.status.conditions[0].status}";
    snapshot!("get_sandbox_jsonpath", cluster.kubectl(&["get", "sandbox", "box", "-o", path]));
    snapshot!(
        "get_sandbox_alpha",
        cluster.kubectl(&[
            "get",
            "sandboxes.v1alpha1.agents.x-k8s.io",
            "box",
            "-o",
            "jsonpath={.apiVersion} {.spec.replicas}"
        ])
    );
    snapshot!("get_by_label", cluster.kubectl(&["get", "sandbox", "-l", "team=blue,!other", "-o", "name"]));
    snapshot!("get_by_field", cluster.kubectl(&["get", "sandbox", "--field-selector", "metadata.name=other"]));
    snapshot!("get_missing", cluster.kubectl(&["get", "sandbox", "nothing"]));
    snapshot!("get_unknown_kind", cluster.kubectl(&["get", "unicorns"]));
    snapshot!("get_built_ins", cluster.kubectl(&["get", "namespaces,serviceaccounts,clusterroles"]));
}

/// D-228: `get -w` prints each change as a row.
#[test]
fn get_watches() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA]);
    let mut watch = cluster
        .kubectl_command(&["get", "sandbox", "-w", "--output-watch-events"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen: Vec<String> = lines.by_ref().take(2).collect();
    set_ready(&cluster, "box", "False");
    seen.extend(lines.next());
    cluster.kubectl_ok(&["delete", "sandbox", "box"]);
    seen.extend(lines.next());
    watch.kill().unwrap();
    watch.wait().unwrap();
    let output = kubectl::Output { code: 0, stdout: seen.join("\n"), stderr: String::new() };
    snapshot!("get_watch", output);
}

/// D-229: events appear in describe.
#[test]
fn describe_shows_the_object_and_its_events() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA]);
    let uid = cluster.kubectl_ok(&["get", "sandbox", "box", "-o", "jsonpath={.metadata.uid}"]);
    let event = serde_json::json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "box.1", "namespace": "default"}, "type": "Normal",
        "reason": "Created", "message": "Pod made", "source": {"component": "controller"}, "count": 1,
        "involvedObject": {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box", "namespace": "default", "uid": uid},
        "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:00:00Z",
    });
    let output = cluster.kubectl_with_input(&["create", "-f", "-"], &event.to_string());
    assert_eq!(output.code, 0, "{}", output.transcript());
    let mut settings = kubectl::filters();
    settings.add_filter(r"\d+y\d+d +controller", "[age]  controller");
    settings
        .bind(|| insta::assert_snapshot!("describe", cluster.kubectl(&["describe", "sandbox", "box"]).transcript()));
}

/// D-234: `api-resources` and `explain` show the product's kinds.
#[test]
fn api_resources_and_explain_know_our_kinds() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_crds();
    snapshot!("api_resources", cluster.kubectl(&["api-resources", "--sort-by=name"]));
    snapshot!("api_versions", cluster.kubectl(&["api-versions"]));
    snapshot!("explain_pod_template", cluster.kubectl(&["explain", "sandbox.spec.podTemplate"]));
    snapshot!(
        "explain_alpha",
        cluster.kubectl(&["explain", "sandbox.spec.replicas", "--api-version=agents.x-k8s.io/v1alpha1"])
    );
    snapshot!("explain_built_in", cluster.kubectl(&["explain", "pod.spec.containers.ports"]));
    snapshot!("explain_missing", cluster.kubectl(&["explain", "sandbox.spec.nothing"]));
}

/// All three patch types, labels, annotations, edit, replace, scale.
#[test]
fn changes_in_every_way() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA, TEMPLATE_BETA, POOL_BETA]);
    let merge = r#"{"metadata":{"annotations":{"note":"old"}}}"#;
    snapshot!("patch_merge", cluster.kubectl(&["patch", "sandbox", "box", "--type=merge", "-p", merge]));
    let json = r#"[{"op":"test","path":"/metadata/annotations/note","value":"old"},{"op":"add","path":"/metadata/labels/json","value":"yes"}]"#;
    snapshot!("patch_json", cluster.kubectl(&["patch", "sandbox", "box", "--type=json", "-p", json]));
    let failing = r#"[{"op":"test","path":"/metadata/annotations/note","value":"different"}]"#;
    snapshot!("patch_json_failing_test", cluster.kubectl(&["patch", "sandbox", "box", "--type=json", "-p", failing]));
    snapshot!(
        "patch_strategic_refused",
        cluster.kubectl(&["patch", "sandbox", "box", "--type=strategic", "-p", merge])
    );
    cluster.kubectl_ok(&["create", "configmap", "settings", "--from-literal=a=1"]);
    snapshot!(
        "patch_strategic",
        cluster.kubectl(&["patch", "configmap", "settings", "-p", r#"{"data":{"b":"2"}}"#, "-o", "jsonpath={.data}"])
    );
    snapshot!("edit", cluster.kubectl(&["edit", "sandbox", "box"]));
    snapshot!("after_edit", cluster.kubectl(&["get", "sandbox", "box", "-o", "jsonpath={.metadata.annotations.note}"]));
    snapshot!("label", cluster.kubectl(&["label", "sandbox", "box", "team=red", "--overwrite"]));
    snapshot!("label_without_overwrite", cluster.kubectl(&["label", "sandbox", "box", "team=green"]));
    snapshot!("annotate", cluster.kubectl(&["annotate", "sandbox", "box", "note-"]));
    snapshot!("scale", cluster.kubectl(&["scale", "sandboxwarmpool", "pool", "--replicas=7"]));
    snapshot!("scale_shown", cluster.kubectl(&["get", "sandboxwarmpool", "pool", "-o", "jsonpath={.spec.replicas}"]));
    snapshot!(
        "scale_wrong_current",
        cluster.kubectl(&["scale", "sandboxwarmpool", "pool", "--replicas=1", "--current-replicas=3"])
    );
    let current = cluster.kubectl_ok(&["get", "sandboxwarmpool", "pool", "-o", "json"]);
    let changed = current.replace(r#""replicas": 7"#, r#""replicas": 4"#);
    snapshot!("replace", cluster.kubectl_with_input(&["replace", "-f", "-"], &changed));
    snapshot!("replace_stale", cluster.kubectl_with_input(&["replace", "-f", "-"], &changed));
    snapshot!("create_existing", cluster.kubectl_with_input(&["create", "-f", "-"], POOL_BETA));
    snapshot!(
        "create_dry_run",
        cluster.kubectl_with_input(
            &["create", "--dry-run=server", "-f", "-"],
            &POOL_BETA.replace("name: pool", "name: other")
        )
    );
    snapshot!("dry_run_left_nothing", cluster.kubectl(&["get", "sandboxwarmpool", "other"]));
}

/// D-227: server-side apply, a conflict, its resolution; and diff.
#[test]
fn server_side_apply_and_diff() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[TEMPLATE_BETA]);
    let ours = |manifest: &str, arguments: &[&str]| {
        let mut all = vec!["apply", "--server-side", "-f", "-"];
        all.extend(arguments);
        cluster.kubectl_with_input(&all, manifest)
    };
    snapshot!("server_side_create", ours(POOL_BETA, &[]));
    let changed = POOL_BETA.replace("replicas: 2", "replicas: 3");
    snapshot!("server_side_conflict", ours(&changed, &["--field-manager=other"]));
    snapshot!("server_side_forced", ours(&changed, &["--field-manager=other", "--force-conflicts"]));
    snapshot!(
        "server_side_owners",
        cluster.kubectl(&[
            "get",
            "sandboxwarmpool",
            "pool",
            "-o",
            "jsonpath={range .metadata.managedFields[*]}{.manager} {.operation}{\"\\n\"}{end}"
        ])
    );
    // diff prints the names of its temporary folders and times of its files.
    let mut settings = kubectl::filters();
    settings.add_filter(r"(?m)^(diff|---|\+\+\+) .*\n", "");
    let output =
        cluster.kubectl_with_input(&["diff", "-f", "-"], &TEMPLATE_BETA.replace("image: host", "image: other"));
    settings.bind(|| insta::assert_snapshot!("diff", output.transcript()));
    let same = cluster.kubectl_with_input(&["diff", "-f", "-"], TEMPLATE_BETA);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""), "{}", same.transcript());
}

/// D-230: waiting for a condition, in time and out of time.
#[test]
fn wait_returns_when_ready_and_times_out_otherwise() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA]);
    snapshot!("wait_in_vain", cluster.kubectl(&["wait", "--for=condition=Ready", "sandbox/box", "--timeout=1s"]));
    let waiting = cluster
        .kubectl_command(&["wait", "--for=condition=Ready", "sandbox/box", "--timeout=30s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    set_ready(&cluster, "box", "True");
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sandbox.agents.x-k8s.io/box condition met\n");
}

/// D-231: delete blocks until the object is gone, with dependents removed, first or not at all.
#[test]
fn delete_cascades_as_asked() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_objects(&[SANDBOX_BETA]);
    let child = |name: &str| {
        let uid = cluster.kubectl_ok(&["get", "sandbox", "box", "-o", "jsonpath={.metadata.uid}"]);
        let owner = serde_json::json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box", "uid": uid, "blockOwnerDeletion": true});
        let manifest = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}});
        let output = cluster.kubectl_with_input(&["create", "-f", "-"], &manifest.to_string());
        assert_eq!(output.code, 0, "{}", output.transcript());
    };
    child("kept");
    snapshot!("delete_orphan", cluster.kubectl(&["delete", "sandbox", "box", "--cascade=orphan"]));
    snapshot!(
        "orphan_is_there",
        cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.metadata.name} {.metadata.ownerReferences}"])
    );
    assert_eq!(apply(&cluster, SANDBOX_BETA).code, 0);
    child("gone");
    snapshot!("delete_foreground", cluster.kubectl(&["delete", "sandbox", "box", "--cascade=foreground"]));
    snapshot!("dependent_is_gone", cluster.kubectl(&["get", "configmap", "gone"]));
    snapshot!("delete_missing", cluster.kubectl(&["delete", "sandbox", "box"]));
    snapshot!("delete_missing_ignored", cluster.kubectl(&["delete", "sandbox", "box", "--ignore-not-found"]));
}

/// The administrator has every permission, others have those of their roles; `auth can-i` agrees.
#[test]
fn access_is_by_role() {
    if kubectl::missing() {
        return;
    }
    let cluster = with_crds();
    cluster.kubectl_ok(&["create", "serviceaccount", "bot"]);
    let token = cluster.kubectl_ok(&["create", "token", "bot", "--duration=10m"]);
    let bot = |arguments: &[&str]| {
        // The bot gets a kubeconfig of its own, without the administrator's token.
        let text = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
        let own = text.lines().map(|line| match line.trim_start().starts_with("token:") {
            true => format!("    token: {}", token.trim()),
            false => line.to_owned(),
        });
        let path = cluster.write("bot", &own.collect::<Vec<_>>().join("\n"));
        let mut all = vec!["--kubeconfig", path.to_str().unwrap()];
        all.extend(arguments);
        cluster.kubectl(&all)
    };
    snapshot!(
        "bot_whoami",
        bot(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}"])
    );
    snapshot!("bot_forbidden", bot(&["get", "sandboxes"]));
    snapshot!("bot_cannot", bot(&["auth", "can-i", "list", "sandboxes.agents.x-k8s.io"]));
    cluster.kubectl_ok(&["create", "role", "looker", "--verb=get,list", "--resource=sandboxes.agents.x-k8s.io"]);
    cluster.kubectl_ok(&["create", "rolebinding", "bot-looks", "--role=looker", "--serviceaccount=default:bot"]);
    snapshot!("bot_allowed", bot(&["get", "sandboxes"]));
    snapshot!("bot_can", bot(&["auth", "can-i", "list", "sandboxes.agents.x-k8s.io"]));
    snapshot!("bot_can_list", bot(&["auth", "can-i", "--list"]));
    snapshot!("bot_cannot_delete", bot(&["delete", "sandbox", "box"]));
    snapshot!("bot_no_other_namespace", bot(&["get", "sandboxes", "-n", "kube-system"]));
    snapshot!("admin_as_other", cluster.kubectl(&["get", "pods", "--as=ann"]));
    snapshot!("admin_can", cluster.kubectl(&["auth", "can-i", "*", "*"]));
    let wrong = cluster.kubectl(&["--token=wrong", "get", "pods"]);
    snapshot!("wrong_token", wrong);
    cluster.kubectl_ok(&["delete", "serviceaccount", "bot"]);
    snapshot!("token_of_deleted_account", bot(&["get", "sandboxes"]));
}
