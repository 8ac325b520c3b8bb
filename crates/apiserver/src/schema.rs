//! Structural schemas of custom resources.

use serde_json::Value;

use crate::status::{FieldError, Path};

pub struct Schema {}

impl Schema {
    pub fn compile(_raw: &Value, _path: &Path<'_>) -> Result<Self, Vec<FieldError>> {
        Ok(Self {})
    }
}
