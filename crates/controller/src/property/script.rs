//! Turning random numbers into what controllers, networks and users do.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    turnstile::Fate,
    world::{NAMESPACE, Theatre, key},
};
use crate::{
    model::Deletion,
    object::{Key, Kind},
};

/// A number taken apart, piece by piece.
struct Dice(u32);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        let face = self.0 % sides;
        self.0 /= sides;
        face
    }

    fn index(&mut self, sides: u32) -> usize {
        self.roll(sides) as usize
    }
}

pub(super) async fn play(theatre: &mut Theatre, script: &[u32]) {
    for number in script {
        let mut dice = Dice(*number);
        act(theatre, &mut dice).await;
        let now = theatre.now();
        for process in &mut theatre.processes {
            process.collect(now).await;
            process.fire_timers(now);
        }
    }
}

async fn act(theatre: &mut Theatre, dice: &mut Dice) {
    let process = dice.index(2);
    match dice.roll(32) {
        0..=6 => {
            let events = 1 + dice.index(8);
            theatre.processes[process].watch(&theatre.model, events);
        }
        7..=11 => theatre.processes[process].start_passes(1 + dice.index(4)),
        12..=20 => {
            let fate = match dice.roll(16) {
                0 => Fate::AnswerLost,
                1 => Fate::RequestLost,
                _ => Fate::Answered,
            };
            theatre.processes[process].turnstile.decide(dice.index(16), fate).await;
        }
        // A crash right after a write: the hardest moment.
        21 => {
            theatre.processes[process].turnstile.decide(dice.index(16), Fate::AnswerLost).await;
            theatre.crash(process);
        }
        22 => theatre.land_late(dice.index(16)).await,
        23..=24 => theatre.run_kubelets(),
        25 => theatre.model.collect_garbage(),
        26 => theatre.model.clock.advance(Duration::from_secs([1, 3, 30, 400][dice.index(4)])),
        _ => user_acts(theatre, dice),
    }
}

fn user_acts(theatre: &mut Theatre, dice: &mut Dice) {
    let claims = ["a", "b", "c"].map(key);
    let claim = claims[dice.index(3)].clone();
    let how = [Deletion::Background, Deletion::Foreground, Deletion::Orphan][dice.index(3)];
    let pool = ["p", "q"][dice.index(2)];
    match dice.roll(12) {
        0..=3 => create_claim(theatre, &claim, pool, dice),
        4 => theatre.model.delete(Kind::Claim, &claim, how),
        // Deleted and made anew under the same name before anybody looks.
        5 => {
            theatre.model.delete(Kind::Claim, &claim, how);
            create_claim(theatre, &claim, pool, dice);
        }
        6 => edit(
            theatre,
            Kind::Claim,
            &claim,
            json!({ "spec": { "additionalPodMetadata": { "annotations": { "note": dice.roll(3).to_string() } } } }),
        ),
        7 => edit(theatre, Kind::Pool, &key(pool), json!({ "spec": { "replicas": dice.roll(4) } })),
        8 => {
            let strategy = ["Recreate", "OnReplenish"][dice.index(2)];
            edit(theatre, Kind::Pool, &key(pool), json!({ "spec": { "updateStrategy": { "type": strategy } } }));
        }
        9 => {
            let image = ["v1", "v2"][dice.index(2)];
            let spec = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": image }] } } });
            edit(theatre, Kind::Template, &key("t"), json!({ "spec": spec }));
        }
        10 => {
            theatre.model.delete(Kind::Pool, &key(pool), how);
            let spec = json!({ "sandboxTemplateRef": { "name": "t" }, "replicas": dice.roll(3) });
            create(theatre, Kind::Pool, pool, spec);
        }
        _ => {
            let sandboxes = theatre.model.keys(Kind::Sandbox);
            let victim = &sandboxes[dice.index(16) % sandboxes.len()];
            if &*victim.name != "users-own" {
                theatre.model.delete(Kind::Sandbox, victim, how);
            }
        }
    }
}

fn create_claim(theatre: &Theatre, claim: &Key, pool: &str, dice: &mut Dice) {
    let mut spec = json!({ "warmPoolRef": { "name": pool } });
    if dice.roll(4) == 0 {
        let at = theatre.now() + Duration::from_secs(20);
        let policy = ["Retain", "Delete", "DeleteForeground"][dice.index(3)];
        spec["lifecycle"] = json!({ "shutdownTime": format!("{at:.0}"), "shutdownPolicy": policy });
    }
    create(theatre, Kind::Claim, &claim.name, spec);
}

fn create(theatre: &Theatre, kind: Kind, name: &str, spec: Value) {
    if theatre.model.get(kind, &key(name)).is_none() {
        theatre.model.create(kind, json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec }));
    }
}

fn edit(theatre: &Theatre, kind: Kind, key: &Key, change: Value) {
    if theatre.model.get(kind, key).is_some_and(|object| object["metadata"]["deletionTimestamp"].is_null()) {
        theatre.model.edit(kind, key, change);
    }
}
