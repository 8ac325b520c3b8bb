//! `extensions.agents.x-k8s.io/v1beta1` SandboxWarmPool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::groups;
use crate::resource::custom_resource;
use crate::template::{NameRef, UpdateStrategy, UpdateStrategyType};

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
    groups::V1BETA1,
    groups::EXTENSIONS_V1BETA1,
    [status]
);

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl SandboxWarmPool {
    /// The wanted size; absent means 1, and a negative value (which the schema rejects) means 0.
    pub fn replicas(&self) -> usize {
        usize::try_from(self.spec.replicas.unwrap_or(1)).unwrap_or(0)
    }

    /// How the pool follows its template; absent means `OnReplenish`.
    pub fn update_strategy(&self) -> UpdateStrategyType {
        self.spec.update_strategy.as_ref().and_then(|strategy| strategy.type_).unwrap_or_default()
    }
}
