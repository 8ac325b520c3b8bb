//! Runs one fuzz target under libFuzzer: the one that the variable `FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

type Target = (&'static str, fn(&[u8]));

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let all: [&[Target]; 9] = [
        agent_sandbox_apiserver::fuzzing::TARGETS,
        agent_sandbox_client::fuzzing::TARGETS,
        agent_sandbox_e2b::fuzzing::TARGETS,
        agent_sandbox_egress::fuzzing::TARGETS,
        agent_sandbox_node::fuzzing::TARGETS,
        agent_sandbox_protocol::fuzzing::TARGETS,
        agent_sandbox_router::fuzzing::TARGETS,
        agent_sandbox_sandboxd::fuzzing::TARGETS,
        agent_sandbox_streams::fuzzing::TARGETS,
    ];
    let found = all.into_iter().flatten().find(|(name, _)| *name == wanted);
    found.expect("FUZZ_TARGET must name a target: a folder of fuzz/corpus").1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
