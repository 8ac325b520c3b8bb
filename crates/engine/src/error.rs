//! Errors of starting and stopping an engine.

use agent_sandbox_apiserver::OpenError;
use agent_sandbox_controller::ControllerError;
use agent_sandbox_node::{NodeError, kubelet::resources::quantity::QuantityError, runtime::RuntimeError};
use agent_sandbox_router::RouterSetupError;
use std::{error::Error as StdError, io, net::SocketAddr, path::PathBuf};
use thiserror::Error;

/// Why an engine could not be started.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error("cannot make {}", .path.display())]
    CreateFolder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", .path.display())]
    WriteFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot use {}", .path.display())]
    ReadFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("this build carries no sandboxd and there is none beside it; build with `make build`")]
    NoSandboxd,
    #[error("cannot use the default limits of Pods")]
    DefaultLimits(#[from] QuantityError),
    #[error("cannot isolate processes here")]
    OpenRuntime(#[source] RuntimeError),
    #[error("cannot set up the audit log")]
    Audit(#[from] agent_sandbox_telemetry::audit::OpenError),
    #[error("cannot open the API's storage")]
    OpenStorage(#[source] OpenError),
    #[error(transparent)]
    StartNode(#[from] NodeError),
    #[error("cannot install {name}")]
    InstallCrd {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("cannot create the namespace {name}")]
    CreateNamespace {
        name: &'static str,
        #[source]
        source: kube::Error,
    },
    #[error("a task that starts the engine ended early")]
    Task(#[from] tokio::task::JoinError),
    #[error("cannot open the API to clients")]
    ListenApi(#[source] Box<dyn StdError + Send + Sync>),
    #[error("the API's kubeconfig holds no token that the router could ask for")]
    NoAdminToken,
    #[error("cannot set up the router")]
    SetUpRouter(#[from] RouterSetupError),
    #[error("cannot open the router on {address}")]
    ListenRouter {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(
        "the {what} would listen beyond this machine, on {address}, without TLS; give {flag} an address such as \
         127.0.0.1:{}, and let a proxy with TLS, an SSH tunnel or `kubectl port-forward` over the API lead to it",
        .address.port()
    )]
    Exposed { what: &'static str, flag: &'static str, address: SocketAddr },
    #[error("cannot serve metrics on {address}")]
    ListenMetrics {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot open {}", .path.display())]
    ListenControl {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the controller was not ready after {seconds} s; its log says why")]
    ControllerNotReady { seconds: u64 },
    #[error("the controller ended")]
    Controller(#[source] ControllerError),
}

/// Why an engine or its sandboxes could not be stopped, or its data not be deleted.
#[derive(Debug, Error)]
pub enum StopError {
    #[error("the state file holds no process id")]
    NoProcessId,
    #[error("the engine (process {pid}) was started with sudo; stop it the same way")]
    NotPermitted { pid: u32 },
    #[error("cannot signal process {pid}")]
    Signal {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error("process {pid} did not stop; its log is {}", .log.display())]
    ProcessTimeout { pid: u32, log: PathBuf },
    #[error("sandboxes did not stop in time")]
    SandboxTimeout,
    #[error(transparent)]
    StopSandboxes(#[from] NodeError),
    #[error(transparent)]
    StartEngine(#[from] EngineError),
    #[error("cannot delete {}", .path.display())]
    Delete {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}
