//! The engine on one machine: API, controller, node and router in one process.
//!
//! This crate owns `agent-sandbox up`: the data folder and the state file that says which process uses it, starting the
//! parts in order and stopping them in the opposite one, sandboxes that a crashed engine left running, and the control
//! socket. It takes no decision of its parts, and it knows neither command lines nor terminals.

mod backend;
mod control;
mod crds;
mod creation_defaults;
mod data_dir;
mod e2b;
mod embedded_router;
mod engine;
mod error;
mod exec_history;
mod guarded_stream;
pub mod host_check;
mod idle;
mod metrics;
mod node_config;
pub mod ready_made;
mod requests;
mod router_objects;
mod sandboxd;
mod shutdown;
mod snapshots;
mod tokens;
mod usage;

pub use agent_sandbox_apiserver::IssuedToken;
pub use backend::Backend;
pub use control::{ControlError, send_request};
pub use data_dir::{DataDir, RunningEngine, SudoUser, host_image_cache, write_private};
pub use engine::{Engine, EngineConfig, ListenConfig, Persistence};
pub use error::{EngineError, StopError};
pub use node_config::{DefaultLimit, NodeConfig};
pub use requests::{EngineReply, EngineRequest, Login, RequestContext, RequestError, handle_request};
pub use shutdown::{purge, stop_leftovers, stop_running};
pub use tokens::TokenRequest;
