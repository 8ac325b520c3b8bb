//! The real reconcilers in a model world that does its worst: two controllers with caches as stale as you like, answers that get lost,
//! writes that land late, crashes after any write, users who delete, recreate and edit, the garbage collector, kubelets and time.
//!
//! After every script the world calms down under one controller, and then: the invariants held at every commit, everything that was
//! asked for is there exactly once, and a settled system writes nothing.

mod invariants;
mod script;
mod turnstile;
mod world;

use proptest::prelude::*;

use self::{script::play, world::Theatre};

/// Cases by default; more with `AGENT_SANDBOX_SOAK=1`.
fn cases() -> u32 {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 4000 } else { 64 }
}

fn run(script: &[u32]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut theatre = Theatre::open();
        play(&mut theatre, script).await;
        theatre.calm_down().await;
        invariants::check_history(&theatre.model.history());
        invariants::check_settled(&theatre);
    });
}

/// Before anything goes wrong: the world is right as it stands.
#[test]
fn an_undisturbed_world_settles() {
    run(&[]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Architecture's invariants 1, 2 and 3.
    #[test]
    fn whatever_happens_every_claim_gets_one_sandbox_and_nobody_elses(script in prop::collection::vec(any::<u32>(), 20..220)) {
        run(&script);
    }
}
