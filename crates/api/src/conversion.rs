//! Conversion between the two versions, on raw JSON.
//!
//! Raw, because a typed round trip rewrites quantities and loses fields. Fields of v1alpha1 that v1beta1 does not have
//! are kept in a state annotation on the stored object; fields of v1beta1 that v1alpha1 does not have are kept in
//! annotations on the v1alpha1 object, which its clients send back. Reading or writing through either version
//! therefore loses nothing. A state annotation that does not parse is ignored: any client can write one, and a failed
//! conversion would break every list that contains the object.

mod claim;
mod object;
mod pool;
mod sandbox;
mod template;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::groups::{
    CORE_V1ALPHA1, CORE_V1BETA1, EXTENSIONS_V1ALPHA1, EXTENSIONS_V1BETA1, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL, group_of,
};
use object::Object;

/// Why an object cannot be converted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConversionError {
    /// A value that must be a JSON object is not one.
    #[error("{field} must be a JSON object")]
    NotAnObject { field: &'static str },
    /// The object's kind is none of this product's kinds.
    #[error("cannot convert kind {kind:?} of {api_version:?}: it is none of this product's kinds")]
    UnknownKind { api_version: String, kind: String },
    /// The requested version is not served.
    #[error("cannot convert {kind} from {from:?} to {to:?}: no such version")]
    UnknownVersion { kind: String, from: String, to: String },
    /// A v1alpha1 client wrote an invalid value into the annotation that represents the policy.
    #[error("invalid VolumeClaimTemplatesPolicy annotation value: {0:?}")]
    InvalidVolumePolicy(String),
}

#[derive(Clone, Copy)]
enum Direction {
    ToHub,
    FromHub,
}

/// Converts one object to `desired_api_version`. An object that already has that version is returned unchanged.
pub fn convert(object: Value, desired_api_version: &str) -> Result<Value, ConversionError> {
    let mut object = Object::new(object)?;
    let from = object.text("apiVersion").to_owned();
    let kind = object.text("kind").to_owned();
    let direction = direction(&from, &kind, desired_api_version)?;
    let Some(direction) = direction else {
        return Ok(object.into_value());
    };
    object.set_text("apiVersion", desired_api_version);
    match (kind.as_str(), direction) {
        (SANDBOX, Direction::ToHub) => sandbox::to_hub(&mut object)?,
        (SANDBOX, Direction::FromHub) => sandbox::from_hub(&mut object)?,
        (SANDBOX_CLAIM, Direction::ToHub) => claim::to_hub(&mut object)?,
        (SANDBOX_CLAIM, Direction::FromHub) => claim::from_hub(&mut object)?,
        (SANDBOX_TEMPLATE, Direction::ToHub) => template::to_hub(&mut object)?,
        (SANDBOX_TEMPLATE, Direction::FromHub) => template::from_hub(&mut object)?,
        (_, Direction::ToHub) => pool::to_hub(&mut object)?,
        (_, Direction::FromHub) => pool::from_hub(&mut object)?,
    }
    Ok(object.into_value())
}

/// The direction of the conversion; `None` when the object already has the version.
fn direction(from: &str, kind: &str, to: &str) -> Result<Option<Direction>, ConversionError> {
    let (hub, spoke) = match kind {
        SANDBOX => (CORE_V1BETA1, CORE_V1ALPHA1),
        SANDBOX_CLAIM | SANDBOX_TEMPLATE | SANDBOX_WARM_POOL => (EXTENSIONS_V1BETA1, EXTENSIONS_V1ALPHA1),
        _ => return Err(ConversionError::UnknownKind { api_version: from.to_owned(), kind: kind.to_owned() }),
    };
    if group_of(from) != group_of(hub) {
        return Err(ConversionError::UnknownKind { api_version: from.to_owned(), kind: kind.to_owned() });
    }
    if from == to && (from == hub || from == spoke) {
        Ok(None)
    } else if from == spoke && to == hub {
        Ok(Some(Direction::ToHub))
    } else if from == hub && to == spoke {
        Ok(Some(Direction::FromHub))
    } else {
        Err(ConversionError::UnknownVersion { kind: kind.to_owned(), from: from.to_owned(), to: to.to_owned() })
    }
}
