//! Maps random numbers to steps of controllers, network and users.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    simulation::{NAMESPACE, Simulation, key},
    stepwise_api::Delivery,
};
use crate::{
    cache::{Key, Kind},
    testing::fake_api::Deletion,
};

/// A random number, consumed in small choices.
struct Choices(u32);

impl Choices {
    fn pick(&mut self, sides: u32) -> u32 {
        let face = self.0 % sides;
        self.0 /= sides;
        face
    }

    fn index(&mut self, sides: u32) -> usize {
        self.pick(sides) as usize
    }
}

pub(super) async fn run_script(simulation: &mut Simulation, script: &[u32]) {
    for number in script {
        let mut choices = Choices(*number);
        apply_step(simulation, &mut choices).await;
        let now = simulation.now();
        for process in &mut simulation.processes {
            process.collect(now).await;
            process.fire_timers(now);
        }
    }
}

async fn apply_step(simulation: &mut Simulation, choices: &mut Choices) {
    let process = choices.index(2);
    match choices.pick(32) {
        0..=6 => {
            let events = 1 + choices.index(8);
            simulation.processes[process].watch(&simulation.api, events);
        }
        7..=11 => simulation.processes[process].start_passes(1 + choices.index(4)),
        12..=20 => {
            let delivery = match choices.pick(16) {
                0 => Delivery::ResponseLost,
                1 => Delivery::RequestLost,
                _ => Delivery::Delivered,
            };
            simulation.processes[process].stepwise_api.resolve(choices.index(16), delivery).await;
        }
        // A crash right after a write, before its response arrives.
        21 => {
            simulation.processes[process].stepwise_api.resolve(choices.index(16), Delivery::ResponseLost).await;
            simulation.crash(process);
        }
        22 => simulation.deliver_late(choices.index(16)).await,
        23..=24 => simulation.run_kubelets(),
        25 => simulation.api.collect_garbage(),
        26 => simulation.api.clock.advance(Duration::from_secs([1, 3, 30, 400][choices.index(4)])),
        _ => apply_user_step(simulation, choices),
    }
}

fn apply_user_step(simulation: &mut Simulation, choices: &mut Choices) {
    let claims = ["a", "b", "c"].map(key);
    let claim = claims[choices.index(3)].clone();
    let how = [Deletion::Background, Deletion::Foreground, Deletion::Orphan][choices.index(3)];
    let pool = ["p", "q"][choices.index(2)];
    match choices.pick(12) {
        0..=3 => create_claim(simulation, &claim, pool, choices),
        4 => simulation.api.delete(Kind::Claim, &claim, how),
        // Deleted and created again under the same name before a controller observes it.
        5 => {
            simulation.api.delete(Kind::Claim, &claim, how);
            create_claim(simulation, &claim, pool, choices);
        }
        6 => edit(
            simulation,
            Kind::Claim,
            &claim,
            json!({ "spec": { "additionalPodMetadata": { "annotations": { "note": choices.pick(3).to_string() } } } }),
        ),
        7 => edit(simulation, Kind::Pool, &key(pool), json!({ "spec": { "replicas": choices.pick(4) } })),
        8 => {
            let strategy = ["Recreate", "OnReplenish"][choices.index(2)];
            edit(simulation, Kind::Pool, &key(pool), json!({ "spec": { "updateStrategy": { "type": strategy } } }));
        }
        9 => {
            let image = ["v1", "v2"][choices.index(2)];
            let spec = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": image }] } } });
            edit(simulation, Kind::Template, &key("t"), json!({ "spec": spec }));
        }
        10 => {
            simulation.api.delete(Kind::Pool, &key(pool), how);
            let spec = json!({ "sandboxTemplateRef": { "name": "t" }, "replicas": choices.pick(3) });
            create(simulation, Kind::Pool, pool, spec);
        }
        _ => {
            let sandboxes = simulation.api.keys(Kind::Sandbox);
            let victim = &sandboxes[choices.index(16) % sandboxes.len()];
            if &*victim.name != "users-own" {
                simulation.api.delete(Kind::Sandbox, victim, how);
            }
        }
    }
}

fn create_claim(simulation: &Simulation, claim: &Key, pool: &str, choices: &mut Choices) {
    let mut spec = json!({ "warmPoolRef": { "name": pool } });
    if choices.pick(4) == 0 {
        let at = simulation.now() + Duration::from_secs(20);
        let policy = ["Retain", "Delete", "DeleteForeground"][choices.index(3)];
        spec["lifecycle"] = json!({ "shutdownTime": format!("{at:.0}"), "shutdownPolicy": policy });
    }
    create(simulation, Kind::Claim, &claim.name, spec);
}

fn create(simulation: &Simulation, kind: Kind, name: &str, spec: Value) {
    if simulation.api.get(kind, &key(name)).is_none() {
        simulation.api.create(kind, json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec }));
    }
}

fn edit(simulation: &Simulation, kind: Kind, key: &Key, change: Value) {
    if simulation.api.get(kind, key).is_some_and(|object| object["metadata"]["deletionTimestamp"].is_null()) {
        simulation.api.edit(kind, key, change);
    }
}
