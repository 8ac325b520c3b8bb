//! Runs the scenarios shared by all SDKs (`tests/scenarios/sdk.yaml`) with the Rust client, against an engine of its
//! own.

#[path = "scenarios/engine.rs"]
mod engine;
#[path = "scenarios/runner.rs"]
mod runner;

use agent_sandbox_client::{ClaimRequest, Source};
use runner::{Runner, Scenario};

const SOURCE: &str = "python-sandbox-template";

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_passes() {
    let text = std::fs::read_to_string(engine::root().join("tests/scenarios/sdk.yaml")).expect("the scenarios");
    let scenarios: Vec<Scenario> = serde_saphyr::from_str(&text).expect("scenarios");
    let Some(engine) = engine::start().await else { return };
    let client = engine.client().await;
    for scenario in &scenarios {
        let wanted = ClaimRequest::new(Source::Named(SOURCE.to_owned()), "default");
        let sandbox = client.claim(&wanted).await.expect("a sandbox");
        let mut runner = Runner::new(client.clone(), sandbox.clone());
        for step in &scenario.steps {
            if let Err(problem) = runner.run_step(step).await {
                panic!("{}: {step:?}: {problem}", scenario.name);
            }
        }
        sandbox.delete().await.expect("deleted");
    }
    engine.stop().await;
}
