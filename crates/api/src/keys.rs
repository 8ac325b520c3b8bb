//! Every label and annotation key, in one place.

/// Prefix of keys that users may not put on Pods through a Pod template.
pub const CORE_PREFIX: &str = "agents.x-k8s.io/";
/// Prefix of the extensions group's keys, which users may not put on Pods either.
pub const EXTENSIONS_PREFIX: &str = "extensions.agents.x-k8s.io/";

/// Label keys.
pub mod labels {
    /// Pod, Service, PVC: hash of the Sandbox's name. The tracking label, the Service's selector and `status.selector`.
    pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";
    /// Unowned Pod, Service, PVC: `true` lets a Sandbox adopt it. Stays after adoption.
    pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";
    /// Claim (by clients), Sandbox, Pod template, Pod: which client made it.
    pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";
    /// Pool Sandbox, its Pod template, its Pod: hash of the pool's name. Removed at adoption.
    pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";
    /// Template, Sandbox, Pod template, Pod: hash of the template's name. NetworkPolicies select by it.
    pub const TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
    /// Pool Sandbox: hash of the blueprint it was made from. Removed at adoption.
    pub const TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
    /// Pool Sandbox: hash of the Pod template alone (deprecated, informational). Removed at adoption.
    pub const POD_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";
    /// Sandbox: `cold` or `warm`.
    pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
    /// Sandbox, Pod template: uid of the claim it serves.
    pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
    /// Sandbox, claim: `true` for those of E2B's API.
    pub const E2B_SANDBOX: &str = "e2b.agent-sandbox.github.io/sandbox";
    /// Snapshot: the name that an E2B client gave it; empty if it gave none.
    pub const E2B_SNAPSHOT: &str = "e2b.agent-sandbox.github.io/snapshot";
    /// Prefix of the labels that hold metadata of E2B's clients: `<prefix><key>`.
    pub const E2B_METADATA_PREFIX: &str = "metadata.e2b.agent-sandbox.github.io/";
    /// Claim, written by old controllers: the assigned Sandbox. Read, and migrated to the annotation of the same key.
    pub const LEGACY_SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
}

/// Annotation keys.
pub mod annotations {
    /// Sandbox: name of the backing Pod.
    pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";
    /// Sandbox: name of the template it was made from.
    pub const TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";
    /// Pod: sorted, comma-joined keys of the labels that the Pod template gave it.
    pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";
    /// Pod: sorted, comma-joined keys of the annotations that the Pod template gave it.
    pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";
    /// Claim, Sandbox: JSON map of W3C trace headers.
    pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";
    /// Any kind: when the object was rewritten in the stored version.
    pub const STORAGE_MIGRATED_AT: &str = "agents.x-k8s.io/storage-migrated-at";
    /// Pool: created for claims of v1alpha1 that name only a template.
    pub const MIGRATION_SHADOW: &str = "agents.x-k8s.io/migration-shadow";
    /// Pool with [`MIGRATION_SHADOW`]: name of the template.
    pub const MIGRATION_SOURCE_TEMPLATE: &str = "agents.x-k8s.io/migration-source-template";
    /// Claim: the assigned warm Sandbox. A restarted controller completes an unfinished adoption from it.
    pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
    /// Claim: when a controller first saw it.
    pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";
    /// Claim: when it first was Ready, or `unknown`.
    pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";
    /// Claim: when its client sent the first request for it.
    pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";
    /// Claim: when an admission webhook first saw it.
    pub const WEBHOOK_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/webhook-first-observed-at";
    /// Pod template, Pod: whether the cluster autoscaler may evict it.
    pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    /// Pod, through a Pod template: `true` asks the embedded node to start the sandbox daemon in the Pod's first
    /// container, whatever its image: the node mounts its own static `sandboxd` read-only and runs it beside the
    /// container's command, listening on the runtime port. Clusters ignore it (there the image brings the daemon).
    /// Under a domain of its own, because keys of `agents.x-k8s.io/` in Pod templates never reach Pods.
    pub const INJECT_SANDBOXD: &str = "runtime.agents.x-k8s.io/inject-sandboxd";
    /// Pod, through a Pod template: names of `hostPath` volumes of which the embedded node mounts a private, writable copy
    /// (an overlay) instead of the folder itself, separated by commas; `=private` after a name says that nobody will look
    /// at the changes. Such volumes are mounted `readOnly`, so that other nodes never write to the folder.
    pub const COPIED_VOLUMES: &str = "agent-sandbox.dev/copied-volumes";

    /// Sandbox, or Pod through a Pod template: name of the SandboxSnapshot of its namespace that its files come from.
    /// The controller copies a Sandbox's to its Pod. A change takes effect when the Sandbox starts the next time, and
    /// replaces the files that it has.
    pub const SNAPSHOT: &str = "agent-sandbox.github.io/snapshot";
    /// Sandbox, Pod, with [`SNAPSHOT`]: when the Sandbox was set back to the snapshot. Another time sets it back again.
    pub const RESTORED_AT: &str = "agent-sandbox.github.io/restored-at";

    /// Sandbox, claim, template: time without activity after which the Sandbox is suspended, such as `15m`; `off`.
    /// Copied from the template and then from the claim when a claim gets its Sandbox, and by the controller to the
    /// Pod, where routers read it.
    pub const IDLE_TIMEOUT: &str = "agent-sandbox.github.io/idle-timeout";
    /// Sandbox, claim, template, Pod, like [`IDLE_TIMEOUT`]: whether commands that run in the background are activity,
    /// `KeepAwake` (the default) or `Ignore`.
    pub const IDLE_PROCESSES: &str = "agent-sandbox.github.io/idle-processes";
    /// Sandbox, claim, template: whether requests wake the Sandbox: `IfIdle` (the default: if it was suspended because
    /// it was idle), `Always` or `Never`.
    pub const WAKE: &str = "agent-sandbox.github.io/wake";
    /// Sandbox: a request waits for it; set by a router or client, removed by the controller.
    pub const WAKE_REQUESTED_AT: &str = "agent-sandbox.github.io/wake-requested-at";
    /// Sandbox: `idle` while it is suspended for that reason; set and removed by the controller.
    pub const SUSPENDED_BY: &str = "agent-sandbox.github.io/suspended-by";
    /// Sandbox with [`IDLE_TIMEOUT`]: when it was last in use, as far as it was recorded.
    pub const LAST_ACTIVITY_AT: &str = "agent-sandbox.github.io/last-activity-at";
    /// Sandbox with [`IDLE_TIMEOUT`]: not suspended before this time.
    pub const KEEP_AWAKE_UNTIL: &str = "agent-sandbox.github.io/keep-awake-until";
    /// Sandbox with [`IDLE_TIMEOUT`]: when a router found it idle. Without such a report it is not suspended.
    pub const IDLE_REPORTED_AT: &str = "agent-sandbox.github.io/idle-reported-at";
    /// Sandbox: when it is suspended, used or not; removed by the controller as it does that.
    pub const SUSPEND_AT: &str = "agent-sandbox.github.io/suspend-at";
    /// Sandbox: time after which it is suspended again when a request has woken it, such as `5m`.
    pub const AWAKE_FOR: &str = "agent-sandbox.github.io/awake-for";
    /// Sandbox: `true` if its shutdown time is when its Pod has finished, for commands that run once.
    pub const SHUTDOWN_WHEN_FINISHED: &str = "agent-sandbox.github.io/shutdown-when-finished";

    /// Sandbox: records of the links to its ports that are valid, as JSON; written by routers (see [`crate::links`]).
    pub const LINKS: &str = "agent-sandbox.github.io/links";

    /// Sandbox, claim, template, Pod: egress rules by domain, such as `pypi.org, *.githubusercontent.com:443, @node`.
    /// With it, everything else outside is closed. A Sandbox gets its template's, and the controller copies its own to
    /// the Pod, where the node enforces it.
    pub const EGRESS: &str = "agent-sandbox.github.io/egress";
    /// Sandbox and Pod, set by the controller: the [`EGRESS`] annotation of the claim, which narrows the Sandbox's own.
    pub const EGRESS_OF_CLAIM: &str = "agent-sandbox.github.io/egress-of-claim";
    /// Namespace, set by its administrator: egress rules that narrow those of every Pod in it.
    pub const EGRESS_CEILING: &str = "agent-sandbox.github.io/egress-ceiling";

    /// Pod, through a Pod template: the sandbox serves E2B's clients. The value is [`super::E2B_PUBLIC`] or
    /// [`super::E2B_PRIVATE`]: who reaches the ports of its programs through the router.
    pub const E2B_TRAFFIC: &str = "e2b.agent-sandbox.github.io/traffic";
    /// Sandbox, claim: the template that a client of E2B's API named.
    pub const E2B_TEMPLATE: &str = "e2b.agent-sandbox.github.io/template";
    /// Sandbox, claim: JSON map of the metadata that cannot be labels.
    pub const E2B_METADATA: &str = "e2b.agent-sandbox.github.io/metadata";
    /// Sandbox, claim: the network settings that the client gave, as JSON.
    pub const E2B_NETWORK: &str = "e2b.agent-sandbox.github.io/network";
    /// Sandbox, claim: what the client wants at the end of its time, as JSON; without it the sandbox is deleted.
    pub const E2B_LIFECYCLE: &str = "e2b.agent-sandbox.github.io/lifecycle";
    /// Sandbox, claim: digest of the request that created it, for repetitions with the same idempotency key.
    pub const E2B_REQUEST: &str = "e2b.agent-sandbox.github.io/request";
    /// Secret with an E2B key: the ServiceAccount, as `<namespace>/<name>`, and its uid.
    pub const E2B_ACCOUNT: &str = "e2b.agent-sandbox.github.io/account";
    pub const E2B_ACCOUNT_UID: &str = "e2b.agent-sandbox.github.io/account-uid";
    /// Secret with an E2B key: `Files` lets every pause keep files only; otherwise one that is to keep more is refused.
    pub const E2B_PAUSE: &str = "e2b.agent-sandbox.github.io/pause";
    /// Secret with an E2B key: when the key expires.
    pub const E2B_EXPIRES: &str = "e2b.agent-sandbox.github.io/expires";

    /// Stored Sandbox: v1alpha1 fields that v1beta1 does not have.
    pub const V1ALPHA1_SANDBOX_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandbox-state";
    /// Stored claim: v1alpha1 fields that v1beta1 does not have.
    pub const V1ALPHA1_CLAIM_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state";
    /// Stored template: v1alpha1 fields that v1beta1 does not have.
    pub const V1ALPHA1_TEMPLATE_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxtemplate-state";
    /// Stored pool: v1alpha1 fields that v1beta1 does not have.
    pub const V1ALPHA1_POOL_STATE: &str = "api.agents.x-k8s.io/v1alpha1-sandboxwarmpool-state";
    /// v1alpha1 template: the policy for claims' volumes, which v1alpha1 has no field for.
    pub const V1BETA1_VOLUME_POLICY: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";
    /// v1alpha1 claim: its volumes, as JSON, which v1alpha1 has no field for.
    pub const V1BETA1_CLAIM_VOLUMES: &str = "api.agents.x-k8s.io/v1beta1-volume-claim-templates";
    /// v1alpha1 claim: its pool, where it cannot be derived from template and pool policy.
    pub const V1BETA1_CLAIM_POOL: &str = "api.agents.x-k8s.io/v1beta1-warm-pool-ref";
}

/// Annotations that say when a Sandbox sleeps and wakes, which a Sandbox inherits from its template and its claim.
pub const SLEEP_POLICY: [&str; 3] = [annotations::IDLE_TIMEOUT, annotations::IDLE_PROCESSES, annotations::WAKE];

/// Value of [`annotations::SUSPENDED_BY`].
pub const SUSPENDED_BY_IDLENESS: &str = "idle";
/// Value of [`annotations::E2B_TRAFFIC`]: everyone who knows the sandbox's id reaches the ports of its programs.
pub const E2B_PUBLIC: &str = "public";
/// Value of [`annotations::E2B_TRAFFIC`]: the sandbox's traffic token is required.
pub const E2B_PRIVATE: &str = "private";
/// Value of [`labels::LAUNCH_TYPE`] for a Sandbox that was waiting in a pool.
pub const LAUNCH_WARM: &str = "warm";
/// Value of [`labels::LAUNCH_TYPE`] for a Sandbox created on demand.
pub const LAUNCH_COLD: &str = "cold";
/// Value of [`labels::CREATED_BY`] on pool Sandboxes.
pub const CREATED_BY_CONTROLLER: &str = "controller";
/// Value of [`annotations::CLAIM_FIRST_READY_AT`] when the time is not known.
pub const FIRST_READY_UNKNOWN: &str = "unknown";

/// True for label keys that only controllers may put on Pods.
pub fn is_reserved_label(key: &str) -> bool {
    key.starts_with(CORE_PREFIX) || key.starts_with(EXTENSIONS_PREFIX)
}

/// Annotations of a Sandbox that the controller copies to its Pod, where nodes enforce them.
pub const EGRESS_RULES: [&str; 2] = [annotations::EGRESS, annotations::EGRESS_OF_CLAIM];

/// True for annotation keys that only controllers may put on Pods. An idle time, or egress rules, on a Pod are its
/// Sandbox's.
pub fn is_reserved_annotation(key: &str) -> bool {
    const OF_SANDBOX: [&str; 3] = [annotations::TRACE_CONTEXT, annotations::IDLE_TIMEOUT, annotations::IDLE_PROCESSES];
    is_reserved_label(key) || OF_SANDBOX.contains(&key) || EGRESS_RULES.contains(&key)
}

/// The bounded form of [`labels::CREATED_BY`] used on Pods, in metrics and in traces.
pub fn normalised_created_by(value: &str) -> &'static str {
    match value {
        "go-client" => "go-client",
        "python-client" => "python-client",
        "controller" => CREATED_BY_CONTROLLER,
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_keys_are_those_of_our_two_groups_and_the_trace_context() {
        assert!(is_reserved_label("agents.x-k8s.io/anything"));
        assert!(is_reserved_label("extensions.agents.x-k8s.io/anything"));
        assert!(!is_reserved_label("my.agents.x-k8s.io/anything"));
        assert!(!is_reserved_label(annotations::TRACE_CONTEXT));
        assert!(is_reserved_annotation(annotations::TRACE_CONTEXT));
        assert!(is_reserved_annotation(annotations::IDLE_TIMEOUT), "the Sandbox's own is what counts");
    }

    #[test]
    fn the_annotation_that_injects_sandboxd_passes_through_a_pod_template() {
        assert!(!is_reserved_annotation(annotations::INJECT_SANDBOXD));
    }

    #[test]
    fn created_by_is_bounded() {
        assert_eq!(normalised_created_by("python-client"), "python-client");
        assert_eq!(normalised_created_by("curl"), "unknown");
    }
}
