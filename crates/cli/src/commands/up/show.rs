//! Output of `up` and `status`.

use agent_sandbox_api::v1beta1::{OperatingMode, Sandbox, SandboxWarmPool};
use agent_sandbox_engine::{DataDir, RunningEngine, SudoUser, ready_made};
use serde_json::{Value, json};
use std::{fmt::Write as _, path::PathBuf};

/// The line that says that the engine is ready, and the next steps.
pub(crate) fn ready(data: &DataDir, running: &RunningEngine) -> String {
    format!(
        "ready: API {}, router {}\n  kubectl:  export KUBECONFIG={}\n  Python:   SandboxClient().create_sandbox(\"{}\")\n  CLI:      agent-sandbox create my-sandbox && agent-sandbox shell my-sandbox\n",
        running.api,
        running.router,
        readable_kubeconfig(data).display(),
        ready_made::NAME,
    )
}

/// The kubeconfig that the user can read: under sudo, the copy of the user who called it.
fn readable_kubeconfig(data: &DataDir) -> PathBuf {
    let copy = SudoUser::from_environment().map(|user| user.folder().join("kubeconfig"));
    copy.filter(|path| path.exists()).unwrap_or_else(|| data.kubeconfig())
}

/// Number of Sandboxes in each state.
struct Counts {
    ready: usize,
    suspended: usize,
    other: usize,
}

impl Counts {
    fn of(sandboxes: &[Sandbox]) -> Self {
        let is_ready = |sandbox: &Sandbox| {
            sandbox.conditions().iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let ready = sandboxes.iter().filter(|sandbox| is_ready(sandbox)).count();
        let is_suspended =
            |sandbox: &&Sandbox| sandbox.operating_mode() == OperatingMode::Suspended && !is_ready(sandbox);
        let suspended = sandboxes.iter().filter(is_suspended).count();
        Self { ready, suspended, other: sandboxes.len() - ready - suspended }
    }
}

/// The status for JSON and YAML.
pub(crate) fn summary(
    data: &DataDir,
    running: &RunningEngine,
    sandboxes: &[Sandbox],
    pools: &[SandboxWarmPool],
) -> Value {
    let counts = Counts::of(sandboxes);
    let pools: Vec<Value> = pools.iter().map(|pool| {
        json!({"namespace": pool.namespace(), "name": pool.name(), "ready": warm(pool), "wanted": pool.replicas()})
    }).collect();
    json!({
        "running": true, "pid": running.pid, "version": running.version, "api": running.api, "router": running.router,
        "dataDir": data.path(), "kubeconfig": data.kubeconfig(),
        "sandboxes": {"ready": counts.ready, "suspended": counts.suspended, "other": counts.other}, "pools": pools,
    })
}

/// The status as text.
pub(crate) fn status(
    data: &DataDir,
    running: &RunningEngine,
    sandboxes: &[Sandbox],
    pools: &[SandboxWarmPool],
) -> String {
    let counts = Counts::of(sandboxes);
    let mut text = format!("running: process {}, version {}\n", running.pid, running.version);
    let _ = writeln!(text, "  API:        {}\n  router:     {}", running.api, running.router);
    let _ = writeln!(text, "  kubeconfig: {}", data.kubeconfig().display());
    let _ = writeln!(
        text,
        "  sandboxes:  {} ready, {} suspended, {} in between",
        counts.ready, counts.suspended, counts.other
    );
    for pool in pools {
        let _ = writeln!(
            text,
            "  pool:       {}/{}: {} of {} warm",
            pool.namespace(),
            pool.name(),
            warm(pool),
            pool.replicas()
        );
    }
    text
}

fn warm(pool: &SandboxWarmPool) -> i32 {
    pool.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default()
}
