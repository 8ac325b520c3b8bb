//! Writing conditions into a list of conditions, by the rules that every Kubernetes client expects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{ConditionType, DesiredCondition};

/// Maximum length of a message in the schema, in characters.
const MESSAGE_LIMIT: usize = 32_768;
/// Maximum length of a reason in the schema, in characters.
const REASON_LIMIT: usize = 1_024;

/// The condition of a type.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_str())
}

/// Writes a condition into the list, in place or at its end. The transition time changes only with the status.
pub fn upsert(conditions: &mut Vec<Condition>, desired: DesiredCondition, observed_generation: i64, now: &Time) {
    let fresh = Condition {
        type_: desired.type_.as_str().to_owned(),
        status: desired.status.as_str().to_owned(),
        reason: desired.reason.into_owned(),
        message: truncated_message(desired.message.into_owned()),
        observed_generation: Some(observed_generation),
        last_transition_time: now.clone(),
    };
    place(conditions, fresh);
}

/// Copies another object's condition into the list. On a change of status the source's own transition time is kept.
pub fn forward(conditions: &mut Vec<Condition>, source: &Condition, observed_generation: Option<i64>) {
    place(conditions, Condition { observed_generation, ..source.clone() });
}

fn place(conditions: &mut Vec<Condition>, mut fresh: Condition) {
    match conditions.iter_mut().find(|condition| condition.type_ == fresh.type_) {
        Some(stored) => {
            if stored.status == fresh.status {
                fresh.last_transition_time = stored.last_transition_time.clone();
            }
            *stored = fresh;
        }
        None => conditions.push(fresh),
    }
}

/// Removes the condition of a type from the list.
pub fn remove(conditions: &mut Vec<Condition>, type_: ConditionType) {
    conditions.retain(|condition| condition.type_ != type_.as_str());
}

/// Sorts the list by type, which is the order in a claim's status.
pub fn sort_by_type(conditions: &mut [Condition]) {
    conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
}

/// The message, truncated to the schema's limit.
pub fn truncated_message(message: String) -> String {
    match message.char_indices().nth(MESSAGE_LIMIT) {
        Some((end, _)) => message[..end].to_owned(),
        None => message,
    }
}

/// True when the schema admits the text as a reason: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`.
pub fn is_reason(reason: &str) -> bool {
    let bytes = reason.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match bytes {
        [first, .., last] if bytes.len() <= REASON_LIMIT => {
            first.is_ascii_alphabetic()
                && inner(last)
                && bytes.iter().all(|byte| inner(byte) || matches!(byte, b',' | b':'))
        }
        [only] => only.is_ascii_alphabetic(),
        _ => false,
    }
}
