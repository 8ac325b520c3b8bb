//! Conversion of Events, which are stored once and served by two API groups with different field names.

use serde_json::{Map, Value};

/// Field of `events.k8s.io/v1` ↔ field of core `v1`.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
    ("reportingController", "reportingComponent"),
];

pub(super) fn convert(object: Value, desired: &str) -> Value {
    let to_core = desired == "v1";
    let Value::Object(fields) = object else { return object };
    let mut out = Map::new();
    for (key, value) in fields {
        let renamed = RENAMED.iter().find(|(new, core)| key == if to_core { *new } else { *core });
        let name = match renamed {
            Some((new, core)) => if to_core { *core } else { *new }.to_owned(),
            None => key,
        };
        out.insert(name, value);
    }
    out.insert("apiVersion".into(), desired.into());
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_round_trip_between_both_groups() {
        let modern = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "p"}, "note": "n", "reason": "R", "action": "A",
            "reportingController": "c", "reportingInstance": "i", "deprecatedCount": 2,
        });
        let core = convert(modern.clone(), "v1");
        assert_eq!(core["involvedObject"]["name"], "p");
        assert_eq!(core["message"], "n");
        assert_eq!(core["reportingComponent"], "c");
        assert_eq!(convert(core, "events.k8s.io/v1"), modern);
    }
}
