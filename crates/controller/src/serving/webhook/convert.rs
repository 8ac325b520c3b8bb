//! Answers a ConversionReview: a pure function from request body to status and response.

use agent_sandbox_api::conversion;
use http::StatusCode;
use serde_json::{Value, json};

/// The response to a review. A body that is not a review gets 400; an object that does not convert fails the whole
/// batch with a `Failure` result.
pub fn review(body: &[u8]) -> (StatusCode, Value) {
    let Ok(mut review) = serde_json::from_slice::<Value>(body) else {
        return (StatusCode::BAD_REQUEST, json!({ "message": "the body is not JSON" }));
    };
    let Some(request) = review.get_mut("request").map(Value::take).filter(Value::is_object) else {
        return (StatusCode::BAD_REQUEST, json!({ "message": "the review has no request" }));
    };
    let desired = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let converted: Result<Vec<Value>, _> =
        objects.into_iter().map(|object| conversion::convert(object, desired)).collect();
    let mut response = json!({ "uid": request["uid"] });
    match converted {
        Ok(objects) => {
            response["convertedObjects"] = Value::Array(objects);
            response["result"] = json!({ "status": "Success" });
        }
        Err(error) => response["result"] = json!({ "status": "Failure", "message": error.to_string() }),
    }
    let mut envelope = json!({ "response": response });
    for field in ["apiVersion", "kind"] {
        envelope[field] = review.get_mut(field).map(Value::take).unwrap_or_default();
    }
    (StatusCode::OK, envelope)
}
