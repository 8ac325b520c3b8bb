//! The Kubernetes side: choosing a cluster, and the objects that the SDK creates, finds and deletes.

use crate::{
    convert,
    handle::{Handle, duration, serialised},
    pending::{Pending, pending, pending_unit},
    snapshots::{self, NewSandboxOptions, SnapshotOptions},
    tokio_runtime::Origin,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::{
    self as sdk, Address, ClaimRequest, ClientError, Cluster, ClusterOptions, Connection, ContainerOptions,
    DirectOptions, GatewayOptions, SandboxClient, Source, TraceContext, Tunnel,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{collections::BTreeMap, time::Duration};

/// A cluster and a way to reach its sandboxes.
#[pyclass(frozen)]
pub(crate) struct Client {
    inner: SandboxClient,
    origin: Origin,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct OpenOptions {
    kubeconfig: Option<String>,
    kubeconfig_text: Option<String>,
    context: Option<String>,
    data_dir: Option<String>,
    local: bool,
    start_local: bool,
    home_first: bool,
    connection: ConnectionOptions,
    port: u16,
    send_pod_ip: bool,
    traceparent: Option<String>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ConnectionOptions {
    kind: String,
    router_namespace: Option<String>,
    gateway_name: Option<String>,
    gateway_namespace: Option<String>,
    gateway_timeout: Option<f64>,
    url: Option<String>,
    headers: Option<Vec<(String, String)>>,
    ca: Option<String>,
    certificate: Option<(String, String)>,
}

impl ConnectionOptions {
    fn into_connection(self) -> PyResult<Connection> {
        let missing = |what: &str| PyValueError::new_err(format!("this connection needs {what}"));
        Ok(match self.kind.as_str() {
            "tunnel" => Connection::Tunnel(Tunnel { router_namespace: self.router_namespace }),
            "pod" => Connection::PodTunnel,
            "gateway" => Connection::Gateway(GatewayOptions {
                name: self.gateway_name.ok_or_else(|| missing("a Gateway's name"))?,
                namespace: self.gateway_namespace.unwrap_or_else(|| "default".to_owned()),
                ready_timeout: duration(self.gateway_timeout.unwrap_or(180.0))?,
            }),
            "direct" => Connection::Direct(DirectOptions {
                url: self.url.ok_or_else(|| missing("a router's address"))?,
                headers: self.headers.unwrap_or_default(),
                ca: self.ca.map(Into::into),
                certificate: self.certificate.map(|(certificate, key)| (certificate.into(), key.into())),
            }),
            "in-cluster" => Connection::InCluster(Address::PodIpThenDns),
            "in-cluster-pod-ip" => Connection::InCluster(Address::PodIp),
            "in-cluster-dns" => Connection::InCluster(Address::Dns),
            "in-cluster-service" => Connection::InCluster(Address::Service),
            other => return Err(PyValueError::new_err(format!("{other:?} is not a way to connect"))),
        })
    }
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ClaimOptions {
    source: String,
    source_name: String,
    namespace: String,
    name: Option<String>,
    adopt: bool,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    pod_labels: Option<BTreeMap<String, String>>,
    pod_annotations: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
    volume_claim_templates: Option<Py<PyAny>>,
    expires_after: Option<f64>,
    ready_timeout: f64,
}

impl ClaimOptions {
    fn into_request(self, py: Python<'_>) -> PyResult<ClaimRequest> {
        let source = match self.source.as_str() {
            "pool" => Source::Pool(self.source_name),
            "template" => Source::Template(self.source_name),
            "template-or-pool" => Source::TemplateOrPool(self.source_name),
            _ => Source::Named(self.source_name),
        };
        let mut request = ClaimRequest::new(source, self.namespace);
        request.name = self.name;
        request.adopt = self.adopt;
        request.labels = self.labels.unwrap_or_default();
        request.annotations = self.annotations.unwrap_or_default();
        request.pod_labels = self.pod_labels.unwrap_or_default();
        request.pod_annotations = self.pod_annotations.unwrap_or_default();
        request.env = self.env.unwrap_or_default().into_iter().collect();
        if let Some(templates) = self.volume_claim_templates {
            match convert::from_python(templates.bind(py))? {
                serde_json::Value::Array(templates) => request.volume_claim_templates = templates,
                serde_json::Value::Null => {}
                _ => return Err(PyValueError::new_err("volume_claim_templates must be a list")),
            }
        }
        request.expires_after = self.expires_after.map(duration).transpose()?;
        request.ready_timeout = duration(self.ready_timeout)?;
        request.created_by = "python-client";
        Ok(request)
    }
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct CreateOptions {
    namespace: String,
    name: String,
    image: String,
    command: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    memory: Option<String>,
    cpus: Option<String>,
    runtime_class: Option<String>,
    expires_after: Option<f64>,
    ready_timeout: f64,
}

impl Client {
    fn inner(&self) -> PyResult<SandboxClient> {
        self.origin.check()?;
        Ok(self.inner.clone())
    }

    fn kube(&self) -> PyResult<kube::Client> {
        Ok(self.inner()?.cluster().client.clone())
    }
}

#[pymethods]
impl Client {
    /// Chooses a cluster without sending a request to it.
    #[staticmethod]
    fn open(options: OpenOptions) -> PyResult<Pending> {
        let connection = options.connection.into_connection()?;
        let cluster = ClusterOptions {
            kubeconfig: options.kubeconfig.map(Into::into),
            kubeconfig_text: options.kubeconfig_text,
            context: options.context,
            data_dir: options.data_dir.map(Into::into),
            local: options.local,
            start_local: options.start_local,
            home_first: options.home_first,
        };
        let (port, hint) = (options.port, options.send_pod_ip);
        let trace = options.traceparent.and_then(|parent| TraceContext::parse(&parent, None));
        let opening = async move {
            let client =
                SandboxClient::new(Cluster::find(&cluster).await?, connection).with_port(port).with_trace(trace);
            Ok(if hint { client.with_pod_ip_hint() } else { client })
        };
        Ok(pending(opening, |py, inner| Ok(Py::new(py, Self { inner, origin: Origin::here() })?.into_any())))
    }

    /// The same cluster, with another way to reach its sandboxes.
    fn reconnected(&self, connection: ConnectionOptions, port: u16) -> PyResult<Self> {
        let cluster = self.inner()?.cluster().clone();
        let inner = SandboxClient::new(cluster, connection.into_connection()?).with_port(port).with_pod_ip_hint();
        Ok(Self { inner, origin: Origin::here() })
    }

    /// The namespace of the kubeconfig's context.
    #[getter]
    fn namespace(&self) -> String {
        self.inner.cluster().namespace.clone()
    }

    /// The local engine's router, when the cluster is the local engine.
    #[getter]
    fn local_router(&self) -> Option<String> {
        self.inner.cluster().local.as_ref().map(|engine| engine.router.clone())
    }

    fn claim(&self, py: Python<'_>, options: ClaimOptions) -> PyResult<Pending> {
        let (inner, request) = (self.inner()?, options.into_request(py)?);
        Ok(pending(async move { inner.claim(&request).await }, handle_to_python))
    }

    fn create(&self, options: CreateOptions) -> PyResult<Pending> {
        let inner = self.inner()?;
        let container = ContainerOptions {
            image: options.image,
            command: options.command.unwrap_or_default(),
            env: options.env.unwrap_or_default().into_iter().collect(),
            memory: options.memory,
            cpus: options.cpus,
            runtime_class: options.runtime_class,
            ..ContainerOptions::default()
        };
        let (namespace, name) = (options.namespace, options.name);
        let expires_after = options.expires_after.map(duration).transpose()?;
        let limit = duration(options.ready_timeout)?;
        let creating = async move { inner.create(&namespace, &name, &container, expires_after, limit).await };
        Ok(pending(creating, handle_to_python))
    }

    /// A sandbox by its own name or its claim's.
    fn find(&self, namespace: String, name: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.find(&namespace, &name).await }, handle_to_python))
    }

    /// Waits until a claim's status names its sandbox.
    fn resolve(&self, namespace: String, claim: String, seconds: f64) -> PyResult<Pending> {
        let (inner, limit) = (self.inner()?, duration(seconds)?);
        let resolving = async move { resolve(&inner, &namespace, &claim, limit).await };
        Ok(pending(resolving, |py, name| Ok(name.into_pyobject(py)?.into_any().unbind())))
    }

    /// A handle for a sandbox that is known to exist.
    fn handle(&self, py: Python<'_>, namespace: &str, name: &str, claim: Option<String>) -> PyResult<Handle> {
        let inner = self.inner()?;
        inner.handle(namespace, name, claim).map(Handle::new).map_err(|error| crate::errors::raise(py, &error))
    }

    fn claims(&self, namespace: String, selector: Option<String>) -> PyResult<Pending> {
        let inner = self.inner()?;
        let listing = async move { inner.claims(&namespace, selector.as_deref()).await };
        Ok(pending(listing, |py, names| Ok(names.into_pyobject(py)?.into_any().unbind())))
    }

    #[pyo3(signature = (namespace, name, uid=None))]
    fn delete_claim(&self, namespace: String, name: String, uid: Option<String>) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.delete_claim(&namespace, &name, uid).await }))
    }

    /// A Sandbox as dict, or None.
    fn get_sandbox(&self, namespace: String, name: String) -> PyResult<Pending> {
        let api = dynamic::<Sandbox>(self.kube()?, &namespace);
        let operation = format!("look up sandbox `{name}` in namespace `{namespace}`");
        let getting = async move { api.get_opt(&name).await.map_err(|source| api_error(operation, source)) };
        Ok(pending(getting, |py, found| serialised(py, &found)))
    }

    /// A claim as dict, or None.
    fn get_claim(&self, namespace: String, name: String) -> PyResult<Pending> {
        let api = dynamic::<SandboxClaim>(self.kube()?, &namespace);
        let operation = format!("look up claim `{name}` in namespace `{namespace}`");
        let getting = async move { api.get_opt(&name).await.map_err(|source| api_error(operation, source)) };
        Ok(pending(getting, |py, found| serialised(py, &found)))
    }

    /// Applies a merge patch to a claim (`claim` true) or a Sandbox.
    fn patch(&self, namespace: String, name: String, claim: bool, patch: &Bound<'_, PyAny>) -> PyResult<Pending> {
        let (client, patch) = (self.kube()?, convert::from_python(patch)?);
        let operation = format!("change `{name}` in namespace `{namespace}`");
        let patching = async move {
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let sent = if claim {
                let api: Api<SandboxClaim> = Api::namespaced(client, &namespace);
                api.patch(&name, &params, &patch).await.map(|object| serde_json::to_value(object).unwrap_or_default())
            } else {
                let api: Api<Sandbox> = Api::namespaced(client, &namespace);
                api.patch(&name, &params, &patch).await.map(|object| serde_json::to_value(object).unwrap_or_default())
            };
            sent.map_err(|source| api_error(operation, source))
        };
        Ok(pending(patching, |py, object| convert::to_python(py, &object)))
    }

    /// Creates an object from a manifest.
    fn create_object(&self, namespace: String, plural: String, manifest: &Bound<'_, PyAny>) -> PyResult<Pending> {
        let (client, manifest) = (self.kube()?, convert::from_python(manifest)?);
        let creating = async move { sdk::create_object(&client, &namespace, &plural, &manifest).await };
        Ok(pending(creating, |py, object| convert::to_python(py, &object)))
    }

    /// Waits until a claim is ready and returns the name of its Sandbox.
    fn wait_claim(&self, namespace: String, name: String, seconds: f64) -> PyResult<Pending> {
        let (client, limit) = (self.kube()?, duration(seconds)?);
        let waiting = async move { sdk::claim_ready(&client, &namespace, &name, limit).await };
        Ok(pending(waiting, |py, claim| {
            Ok(claim.bound_sandbox().unwrap_or_default().into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Waits until a Sandbox is ready.
    fn wait_ready(&self, namespace: String, name: String, seconds: f64) -> PyResult<Pending> {
        let (client, limit) = (self.kube()?, duration(seconds)?);
        let waiting = async move { sdk::sandbox_ready(&client, &namespace, &name, limit).await };
        Ok(pending(waiting, |py, sandbox| serialised(py, &sandbox)))
    }

    /// Takes a snapshot of a sandbox and waits until it is complete.
    fn take_snapshot(&self, options: SnapshotOptions) -> PyResult<Pending> {
        let (client, (namespace, request, limit)) = (self.kube()?, options.into_request()?);
        let taking = async move { sdk::take_snapshot(&client, &namespace, request, limit).await };
        Ok(pending(taking, |py, snapshot| serialised(py, &snapshot)))
    }

    /// The snapshots of a namespace, the oldest first.
    fn snapshots(&self, namespace: String) -> PyResult<Pending> {
        let client = self.kube()?;
        let listing = async move { sdk::list_snapshots(&client, &namespace).await };
        Ok(pending(listing, |py, list| serialised(py, &list)))
    }

    fn delete_snapshot(&self, namespace: String, name: String) -> PyResult<Pending> {
        let client = self.kube()?;
        Ok(pending_unit(async move { sdk::delete_snapshot(&client, &namespace, &name).await }))
    }

    /// Creates a sandbox from a snapshot and waits until it is ready.
    fn create_from_snapshot(&self, snapshot: String, name: String, options: NewSandboxOptions) -> PyResult<Pending> {
        let new = options.with_client(self.inner()?)?;
        Ok(pending(async move { new.create(&snapshot, &name).await }, handle_to_python))
    }

    /// Creates sandboxes of these names with the files that a sandbox has now, and waits until all of them are ready.
    fn fork(&self, sandbox: String, names: Vec<String>, options: NewSandboxOptions) -> PyResult<Pending> {
        let new = options.with_client(self.inner()?)?;
        Ok(pending(async move { new.fork(sandbox, &names).await }, |py, handles| {
            let handles = handles.into_iter().map(|handle| handle_to_python(py, handle));
            Ok(handles.collect::<PyResult<Vec<_>>>()?.into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Sets a sandbox back to a snapshot. One that ran runs again when this ends.
    fn roll_back(&self, namespace: String, sandbox: String, snapshot: String, seconds: f64) -> PyResult<Pending> {
        let (client, limit) = (self.kube()?, duration(seconds)?);
        let going_back = async move { snapshots::roll_back(&client, &namespace, &sandbox, &snapshot, limit).await };
        Ok(pending_unit(going_back))
    }

    /// Creates a template with one container, and a warm pool that uses it when `replicas` is given.
    fn create_pool(
        &self,
        namespace: String,
        name: String,
        image: String,
        env: BTreeMap<String, String>,
        replicas: Option<u32>,
    ) -> PyResult<Pending> {
        let client = self.kube()?;
        let container = ContainerOptions { image, env: env.into_iter().collect(), ..ContainerOptions::default() };
        Ok(pending_unit(async move { sdk::create_pool(&client, &namespace, &name, &container, replicas).await }))
    }

    /// Deletes a warm pool and its template of the same name; objects that do not exist are ignored.
    fn delete_pool(&self, namespace: String, name: String) -> PyResult<Pending> {
        let client = self.kube()?;
        Ok(pending_unit(async move { sdk::delete_pool(&client, &namespace, &name).await }))
    }

    /// Warm pools: `(name, wanted, ready)`.
    fn pools(&self, namespace: String) -> PyResult<Pending> {
        let client = self.kube()?;
        let listing = async move { sdk::list_pools(&client, &namespace).await };
        Ok(pending(listing, |py, pools| Ok(pools.into_pyobject(py)?.into_any().unbind())))
    }
}

/// An untyped API, which keeps fields that our types do not have.
fn dynamic<K: kube::Resource<DynamicType = ()>>(client: kube::Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<K>(&()))
}

fn api_error(operation: String, source: kube::Error) -> ClientError {
    ClientError::Api { operation, source: Box::new(source) }
}

fn handle_to_python(py: Python<'_>, handle: sdk::SandboxHandle) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Handle::new(handle))?.into_any())
}

/// The name of a claim's sandbox. Fails immediately when the claim does not exist.
async fn resolve(client: &SandboxClient, namespace: &str, claim: &str, limit: Duration) -> Result<String, ClientError> {
    let api: Api<SandboxClaim> = Api::namespaced(client.cluster().client.clone(), namespace);
    let operation = format!("look up claim `{claim}` in namespace `{namespace}`");
    let found = api.get_opt(claim).await.map_err(|source| api_error(operation, source))?;
    let Some(found) = found else {
        return Err(ClientError::NotFound { kind: "claim", namespace: namespace.to_owned(), name: claim.to_owned() });
    };
    if let Some(name) = found.bound_sandbox() {
        return Ok(name.to_owned());
    }
    let ready = sdk::claim_ready(&client.cluster().client, namespace, claim, limit).await?;
    Ok(ready.bound_sandbox().unwrap_or_default().to_owned())
}
