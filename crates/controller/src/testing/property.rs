//! Property tests of the four reconcilers together, on an API in memory with every kind of failure: two controllers
//! with stale caches, responses that get lost, writes that arrive late, crashes after any write, users who delete,
//! recreate and edit, the garbage collector, kubelets and time.
//!
//! After every script the system converges under one controller. Then the invariants must have held at every commit,
//! everything that was requested must exist exactly once, and a converged system must write nothing.

mod invariants;
mod script;
mod simulation;
mod stepwise_api;

use proptest::prelude::*;

use self::{script::run_script, simulation::Simulation};

/// Cases by default; more with `AGENT_SANDBOX_SOAK=1`.
fn cases() -> u32 {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 4000 } else { 64 }
}

fn run(script: &[u32]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut simulation = Simulation::open();
        run_script(&mut simulation, script).await;
        simulation.converge().await;
        invariants::check_history(&simulation.api.history());
        invariants::check_converged(&simulation);
    });
}

/// Without any failure the initial state converges.
#[test]
fn a_simulation_without_failures_converges() {
    run(&[]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Architecture's invariants 1, 2 and 3.
    #[test]
    fn every_claim_gets_one_sandbox_of_its_own_under_all_failures(script in prop::collection::vec(any::<u32>(), 20..220)) {
        run(&script);
    }
}
