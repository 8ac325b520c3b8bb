//! What a namespace limits: resources of containers, Pods and claims (LimitRange), and totals (ResourceQuota).
//!
//! | module | does |
//! |---|---|
//! | `amount` | quantities with the notation that Kubernetes prints them in |
//! | `pod_resources` | requests and limits of a whole Pod |
//! | [`limit_range`] | defaults and checks of LimitRanges |
//! | [`quota`] | ResourceQuotas: which objects they match, and the check of a write |
//! | `charge` | what one object counts against a quota |
//! | [`runtime_class`] | what a RuntimeClass adds to Pods |
//! | [`ledger`] | the usage of a namespace, from the latest state of its objects |

mod amount;
mod charge;
pub(crate) mod ledger;
pub(crate) mod limit_range;
mod pod_resources;
pub(crate) mod quota;
pub(crate) mod runtime_class;

pub(crate) use amount::Amount;
