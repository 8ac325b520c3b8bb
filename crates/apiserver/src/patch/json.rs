//! JSON patch (RFC 6902).

use serde::Deserialize;
use serde_json::Value;

use crate::status::ApiError;

/// Maximum number of operations in one patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// Maximum bytes that all `copy` operations of a patch may add: each one could double the object.
const MAX_COPIED: usize = 3 << 20;
/// Maximum nesting depth of the result: deeper JSON could not be parsed again.
const MAX_DEPTH: usize = 128;

#[derive(Debug, Deserialize)]
struct Operation {
    op: String,
    path: String,
    #[serde(default)]
    from: Option<String>,
    /// Absent and `null` differ: `test` with null is legal.
    #[serde(default, deserialize_with = "present")]
    value: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(d).map(Some)
}

/// A parsed JSON patch.
#[derive(Debug)]
pub struct JsonPatch {
    operations: Vec<Operation>,
}

impl JsonPatch {
    pub fn parse(raw: &[u8]) -> Result<Self, ApiError> {
        let operations: Vec<Operation> =
            serde_json::from_slice(raw).map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
        if operations.len() > MAX_OPERATIONS {
            return Err(ApiError::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", operations.len()),
            ));
        }
        Ok(Self { operations })
    }

    pub fn apply(&self, mut object: Value) -> Result<Value, ApiError> {
        let mut copied = 0;
        for operation in &self.operations {
            apply(&mut object, operation, &mut copied).map_err(|why| {
                ApiError::new(
                    http::StatusCode::UNPROCESSABLE_ENTITY,
                    "Invalid",
                    format!("the server rejected our request due to an error in our request: {why}"),
                )
                .with_empty_details()
            })?;
        }
        if object.is_object() {
            Ok(object)
        } else {
            Err(ApiError::bad_request("the patched object must be a JSON object"))
        }
    }
}

fn apply(object: &mut Value, operation: &Operation, copied: &mut usize) -> Result<(), String> {
    let path = &operation.path;
    let depth = path.bytes().filter(|b| *b == b'/').count();
    let fits = |value: &Value| match depth + height(value) {
        levels if levels > MAX_DEPTH => Err(format!("{levels} levels at {path:?} are more than {MAX_DEPTH}")),
        _ => Ok(()),
    };
    let value =
        || operation.value.clone().ok_or_else(|| format!("{} operation on {path:?} has no value", operation.op));
    let from =
        || operation.from.as_deref().ok_or_else(|| format!("{} operation on {path:?} has no from", operation.op));
    match operation.op.as_str() {
        "add" => {
            let value = value()?;
            fits(&value)?;
            add(object, path, value)
        }
        "remove" => remove(object, path).map(drop),
        "replace" => {
            let value = value()?;
            fits(&value)?;
            *find(object, path)? = value;
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.starts_with(&format!("{from}/")) {
                return Err(format!("cannot move {from:?} into itself at {path:?}"));
            }
            let value = remove(object, from)?;
            fits(&value)?;
            add(object, path, value)
        }
        "copy" => {
            let value = find(object, from()?)?;
            fits(value)?;
            *copied += size(value);
            if *copied > MAX_COPIED {
                return Err(format!("copies add more than {MAX_COPIED} bytes"));
            }
            let value = value.clone();
            add(object, path, value)
        }
        "test" => {
            let wanted = value()?;
            let actual = find(object, path)?;
            if *actual == wanted { Ok(()) } else { Err(format!("testing path {path:?} value failed")) }
        }
        other => Err(format!("unexpected patch operation {other:?}")),
    }
}

/// Nesting depth of a value. The recursion is bounded, because values were parsed or checked before.
fn height(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(height).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(height).max().unwrap_or(0),
        _ => 0,
    }
}

/// Approximate length of a value as JSON text.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(members) => 2 + members.iter().map(|(name, member)| name.len() + 4 + size(member)).sum::<usize>(),
        Value::Array(items) => 2 + items.iter().map(|item| 1 + size(item)).sum::<usize>(),
        Value::String(text) => 2 + text.len(),
        _ => 4,
    }
}

fn tokens(path: &str) -> Result<Vec<String>, String> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let rest = path.strip_prefix('/').ok_or_else(|| format!("path {path:?} must start with '/'"))?;
    Ok(rest.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect())
}

fn step<'a>(at: &'a mut Value, token: &str, path: &str) -> Result<&'a mut Value, String> {
    let missing = || format!("path {path:?} does not exist: missing {token:?}");
    match at {
        Value::Object(map) => map.get_mut(token).ok_or_else(missing),
        Value::Array(list) => {
            let index = index(token, list.len(), path)?;
            list.get_mut(index).ok_or_else(missing)
        }
        _ => Err(missing()),
    }
}

fn index(token: &str, len: usize, path: &str) -> Result<usize, String> {
    let canonical = token == "0" || !token.starts_with('0');
    match token.parse::<usize>() {
        Ok(i) if i < len && canonical && !token.starts_with('+') => Ok(i),
        _ => Err(format!("path {path:?}: index {token:?} is out of bounds for {len} items")),
    }
}

fn find<'a>(object: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    tokens(path)?.iter().try_fold(object, |at, token| step(at, token, path))
}

/// Walks to the parent of `path` and returns it with the last token; `None` for the whole document.
fn parent<'a>(object: &'a mut Value, path: &str) -> Result<Option<(&'a mut Value, String)>, String> {
    let mut tokens = tokens(path)?;
    let Some(last) = tokens.pop() else { return Ok(None) };
    let at = tokens.iter().try_fold(object, |at, token| step(at, token, path))?;
    Ok(Some((at, last)))
}

fn add(object: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let whole = path.is_empty();
    if whole {
        *object = value;
        return Ok(());
    }
    match parent(object, path)? {
        Some((Value::Object(map), key)) => {
            map.insert(key, value);
            Ok(())
        }
        Some((Value::Array(list), token)) => {
            let at = if token == "-" { list.len() } else { index(&token, list.len() + 1, path)? };
            list.insert(at, value);
            Ok(())
        }
        _ => Err(format!("path {path:?} does not exist: its parent holds neither members nor items")),
    }
}

fn remove(object: &mut Value, path: &str) -> Result<Value, String> {
    match parent(object, path)? {
        None => Err("the whole document cannot be removed".into()),
        Some((Value::Object(map), key)) => {
            map.remove(&key).ok_or_else(|| format!("path {path:?} does not exist: missing {key:?}"))
        }
        Some((Value::Array(list), token)) => {
            let at = index(&token, list.len(), path)?;
            Ok(list.remove(at))
        }
        _ => Err(format!("path {path:?} does not exist")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patched(object: Value, patch: Value) -> Result<Value, ApiError> {
        JsonPatch::parse(patch.to_string().as_bytes())?.apply(object)
    }

    #[test]
    fn each_operation_is_applied() {
        let got = patched(
            json!({"a": {"b": [1, 2]}, "c~/": 1, "gone": true}),
            json!([
                {"op": "test", "path": "/a/b/0", "value": 1},
                {"op": "add", "path": "/a/b/1", "value": 9},
                {"op": "add", "path": "/a/b/-", "value": 7},
                {"op": "replace", "path": "/c~0~1", "value": 5},
                {"op": "remove", "path": "/gone"},
                {"op": "copy", "from": "/a/b", "path": "/copy"},
                {"op": "move", "from": "/a/b", "path": "/moved"},
            ]),
        )
        .unwrap();
        assert_eq!(got, json!({"a": {}, "c~/": 5, "copy": [1, 9, 2, 7], "moved": [1, 9, 2, 7]}));
    }

    #[test]
    fn bad_operations_name_the_path() {
        for (patch, text) in [
            (json!([{"op": "remove", "path": "/nope"}]), "/nope"),
            (json!([{"op": "test", "path": "/a", "value": 2}]), "testing path"),
            (json!([{"op": "add", "path": "/list/5", "value": 2}]), "out of bounds"),
            (json!([{"op": "frob", "path": "/a"}]), "frob"),
            (json!([{"op": "add", "path": "/a"}]), "no value"),
            (json!([{"op": "move", "path": "/o/x", "from": "/o"}]), "into itself"),
            (json!([{"op": "add", "path": "a", "value": 2}]), "must start"),
        ] {
            let error = patched(json!({"a": 1, "list": [], "o": {}}), patch).unwrap_err();
            assert_eq!(error.code, 422);
            assert!(error.message.contains(text), "{}", error.message);
        }
        assert_eq!(JsonPatch::parse(b"{}").unwrap_err().code, 400);
    }

    #[test]
    fn copies_and_nesting_are_bounded() {
        let patch = |operations: Value| JsonPatch::parse(operations.to_string().as_bytes()).unwrap();
        let doubling: Vec<Value> =
            (0..60).map(|n| json!({"op": "copy", "from": "", "path": format!("/c{n}")})).collect();
        let error = patch(doubling.into()).apply(json!({"text": "x".repeat(1000)})).unwrap_err();
        assert!(error.message.contains("copies add more than"), "{}", error.message);
        let mut path = "/a".to_owned();
        let mut nesting = Vec::new();
        for _ in 0..MAX_DEPTH {
            nesting.push(json!({"op": "add", "path": path, "value": {"a": {}}}));
            path.push_str("/a");
        }
        let error = patch(nesting.into()).apply(json!({})).unwrap_err();
        assert!(error.message.contains("levels at"), "{}", error.message);
    }

    proptest! {
        #[test]
        fn add_then_test_holds(object in crate::patch::tests::any_object(), key in "[a-z~/]{1,4}", value in any::<i32>()) {
            let path = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
            let got = patched(object, json!([
                {"op": "add", "path": path, "value": value},
                {"op": "test", "path": path, "value": value},
            ])).unwrap();
            prop_assert_eq!(&got[&key], &json!(value));
        }

        #[test]
        fn no_path_panics(object in crate::patch::tests::any_object(), path in "[/a-d0-9~-]{0,8}", op in "(add|remove|replace|test|copy|move)") {
            let _ = patched(object, json!([{"op": op, "path": path, "from": path, "value": 1}]));
        }
    }
}
