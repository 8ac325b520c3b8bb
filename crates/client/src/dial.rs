//! Opens byte streams to a sandbox's daemon or to the router over TCP, TLS or the API's port-forward.

use crate::{ClientError, DirectOptions, lookup, tunnel};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_protocol::router_headers::DEFAULT_PORT;
use http::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::connect::{Connected, Connection as Connects, HttpConnector},
    rt::TokioIo,
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, Client, ResourceExt, api::ListParams};
use rustls::{ClientConfig, RootCertStore, pki_types::pem::PemObject};
use std::{
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Timeout for opening one connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ROUTER_SERVICE: &str = "sandbox-router-svc";
/// The router Service's port.
const ROUTER_PORT: u16 = 8080;

/// Opens streams of one kind.
#[derive(Clone)]
pub(crate) enum Dialer {
    Plain(HttpConnector),
    Tls(HttpsConnector<HttpConnector>),
    /// Port-forward to the router's Pod, which is looked up in these namespaces in turn. Without a router, to the
    /// sandbox's own Pod, at the port of the URI.
    Router {
        client: Client,
        namespaces: Vec<String>,
        namespace: String,
        sandbox: String,
    },
    /// Port-forward to the Pod in which a sandbox currently runs, at the port of the URI.
    Sandbox {
        client: Client,
        namespace: String,
        sandbox: String,
    },
    /// Port-forward to a given Pod.
    Pod {
        client: Client,
        namespace: String,
        pod: String,
    },
}

impl Dialer {
    /// Plain TCP.
    pub(crate) fn plain() -> Self {
        Self::Plain(tcp())
    }

    /// TLS with the system's certificate authorities or those in `options`.
    pub(crate) fn tls(options: &DirectOptions) -> Result<Self, ClientError> {
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls(options)?);
        Ok(Self::Tls(builder.https_or_http().enable_http1().wrap_connector(tcp())))
    }

    async fn open(self, uri: Uri) -> Result<Stream, BoxError> {
        match self {
            Self::Plain(mut connector) => {
                let stream = tower::Service::call(&mut connector, uri).await?;
                Ok(Stream(Box::new(stream.into_inner())))
            }
            Self::Tls(mut connector) => {
                let stream = tower::Service::call(&mut connector, uri).await?;
                Ok(Stream(Box::new(TokioIo::new(stream))))
            }
            Self::Router { client, namespaces, namespace, sandbox } => {
                let Some((namespace, pod, port)) = router_pod(&client, &namespaces).await? else {
                    let tried = namespaces.join(", then ");
                    let no_router = |error: BoxError| match error.downcast::<ClientError>().map(|known| *known) {
                        Ok(known @ (ClientError::Suspended { .. } | ClientError::NotRunning { .. })) => known,
                        Ok(known) => ClientError::NoRouter { tried, direct_error: known.to_string() },
                        Err(error) => ClientError::NoRouter { tried, direct_error: error.to_string() },
                    };
                    return Ok(to_sandbox(&client, &namespace, &sandbox, &uri).await.map_err(no_router)?);
                };
                Ok(Stream(Box::new(tunnel::forward(&client, &namespace, &pod, port).await?)))
            }
            Self::Pod { client, namespace, pod } => {
                let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
                Ok(Stream(Box::new(tunnel::forward(&client, &namespace, &pod, port).await?)))
            }
            Self::Sandbox { client, namespace, sandbox } => to_sandbox(&client, &namespace, &sandbox, &uri).await,
        }
    }
}

/// Opens a stream to the Pod in which the sandbox currently runs.
async fn to_sandbox(client: &Client, namespace: &str, sandbox: &str, uri: &Uri) -> Result<Stream, BoxError> {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let found = api.get(sandbox).await?;
    let pod = lookup::awake_pod(client, &found).await?;
    let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(Stream(Box::new(tunnel::forward(client, namespace, &pod.name_any(), port).await?)))
}

/// A running Pod of the router's Service: namespace, name and port in the Pod.
pub(crate) async fn router_pod(
    client: &Client,
    namespaces: &[String],
) -> Result<Option<(String, String, u16)>, ClientError> {
    for namespace in namespaces {
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let found = services.get_opt(ROUTER_SERVICE).await;
        let Some(service) = found.map_err(ClientError::api("look for the router"))? else { continue };
        let spec = service.spec.unwrap_or_default();
        let selector: Vec<String> =
            spec.selector.unwrap_or_default().iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let list = pods.list(&ListParams::default().labels(&selector.join(","))).await;
        let list = list.map_err(ClientError::api("look for the router's Pod"))?;
        let Some(pod) = list.items.into_iter().find(is_running) else { continue };
        let target = spec.ports.unwrap_or_default().into_iter().find(|port| port.port == i32::from(ROUTER_PORT));
        let port = target.and_then(|port| target_port(&pod, port.target_port)).unwrap_or(ROUTER_PORT);
        return Ok(Some((namespace.clone(), pod.name_any(), port)));
    }
    Ok(None)
}

fn is_running(pod: &Pod) -> bool {
    let running = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    running && pod.metadata.deletion_timestamp.is_none()
}

/// Resolves a Service's target port, which is a number or the name of a container port.
fn target_port(pod: &Pod, target: Option<k8s_openapi::apimachinery::pkg::util::intstr::IntOrString>) -> Option<u16> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    match target? {
        IntOrString::Int(number) => u16::try_from(number).ok(),
        IntOrString::String(name) => {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
            let named = ports.find(|port| port.name.as_deref() == Some(name.as_str()))?;
            u16::try_from(named.container_port).ok()
        }
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

fn tls(options: &DirectOptions) -> Result<ClientConfig, ClientError> {
    let invalid = |path: &Path, why: String| ClientError::Invalid(format!("{}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    match options.ca.as_deref() {
        Some(path) => {
            let read = rustls::pki_types::CertificateDer::pem_file_iter(path);
            for certificate in read.map_err(|error| invalid(path, error.to_string()))? {
                let certificate = certificate.map_err(|error| invalid(path, error.to_string()))?;
                roots.add(certificate).map_err(|error| invalid(path, error.to_string()))?;
            }
        }
        // If no system certificate can be read, the handshake reports the error.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Invalid(format!("TLS: {error}")))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &options.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = rustls::pki_types::CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| invalid(certificate, error.to_string()))?;
    let secret = rustls::pki_types::PrivateKeyDer::from_pem_file(key);
    let secret = secret.map_err(|error| invalid(key, error.to_string()))?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| invalid(certificate, error.to_string()))
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl tower::Service<Uri> for Dialer {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let opened = tokio::time::timeout(CONNECT_TIMEOUT, dialer.open(uri)).await;
            let late = |_| BoxError::from(format!("no connection after {} s", CONNECT_TIMEOUT.as_secs()));
            opened.map_err(late)?.map(TokioIo::new)
        })
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// An open stream of any type.
pub(crate) struct Stream(Box<dyn Duplex>);

impl Connects for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
