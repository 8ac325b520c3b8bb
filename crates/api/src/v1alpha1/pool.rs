//! `extensions.agents.x-k8s.io/v1alpha1` SandboxWarmPool: replicas required, no observedGeneration.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{NameRef, UpdateStrategy};

/// A number of Sandboxes kept ready for claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SandboxWarmPool {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SandboxWarmPoolSpec,
    #[serde(default)]
    pub status: Option<SandboxWarmPoolStatus>,
}

custom_resource!(
    SandboxWarmPool,
    "SandboxWarmPoolList",
    "sandboxwarmpools",
    groups::EXTENSIONS,
    groups::V1ALPHA1,
    groups::EXTENSIONS_V1ALPHA1,
    [status]
);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    #[serde(default)]
    pub replicas: i32,
    #[serde(default)]
    pub sandbox_template_ref: NameRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// What was last observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}
