//! Tests of the server over real TLS: which requests are accepted, and their responses.

use agent_sandbox_streams::backend::NoNode;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};

use super::*;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key, PEM.
    fn issue(&self, name: &str) -> (String, String) {
        self.issue_to(name, &[(DnType::CommonName, name)])
    }

    fn issue_to(&self, host: &str, subject: &[(DnType, &str)]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// An API with two valid tokens, one of which is authorised for nodes, a Pod of this node and a Pod of another node.
fn api() -> kube::Client {
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let response = match path.as_str() {
            "/apis/authentication.k8s.io/v1/tokenreviews" => {
                let token = request["spec"]["token"].as_str().unwrap_or_default().to_owned();
                let known = ["admin", "guest"].contains(&token.as_str());
                json!({"spec": {}, "status": {"authenticated": known, "user": {"username": token}}})
            }
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                let attributes = &request["spec"]["resourceAttributes"];
                let proxy = attributes["resource"] == "nodes" && attributes["subresource"] == "proxy";
                let groups = request["spec"]["groups"].as_array().cloned().unwrap_or_default();
                let administrator = request["spec"]["user"] == "admin" || groups.contains(&json!("system:masters"));
                let allowed = proxy && attributes["name"] == "n1" && administrator;
                json!({"spec": {}, "status": {"allowed": allowed}})
            }
            "/api/v1/namespaces/ns/pods/elsewhere" => json!({"metadata": {"name": "elsewhere", "namespace": "ns"},
                "spec": {"nodeName": "n2", "containers": []}}),
            "/api/v1/namespaces/ns/pods/here" => json!({"metadata": {"name": "here", "namespace": "ns"},
                "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}),
            other => panic!("unexpected {other}"),
        };
        let text = serde_json::to_vec(&response).unwrap();
        Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::new(Bytes::from(text))))
    });
    kube::Client::new(service, "default")
}

struct Fixture {
    kubelet: KubeletServer,
    servers: Authority,
    clients: Authority,
}

impl Fixture {
    async fn open() -> Self {
        let (servers, clients) = (Authority::new(), Authority::new());
        let (certificate, key) = servers.issue("localhost");
        let config = KubeletServerConfig {
            node_name: "n1".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: certificate.into(),
            key: key.into(),
            client_authority: Some(clients.pem.clone().into()),
        };
        let kubelet = KubeletServer::start(config, api(), Arc::new(NoNode)).await.unwrap();
        Self { kubelet, servers, clients }
    }

    /// The status and text of a response; `Err` when the connection itself is refused.
    async fn get(
        &self,
        path: &str,
        token: Option<&str>,
        identity: Option<(String, String)>,
    ) -> Result<(u16, String), String> {
        self.get_with(path, token, identity, &[]).await
    }

    async fn get_with(
        &self,
        path: &str,
        token: Option<&str>,
        identity: Option<(String, String)>,
        headers: &[(&str, &str)],
    ) -> Result<(u16, String), String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.servers.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
        };
        let stream = TcpStream::connect(self.kubelet.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream =
            connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let mut request = http::Request::get(path).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response =
            sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        Ok((status, String::from_utf8_lossy(&text).trim().to_owned()))
    }
}

#[tokio::test]
async fn unauthenticated_requests_get_401_and_unauthorised_users_403() {
    let fixture = Fixture::open().await;
    for path in ["/healthz", "/exec/ns/here/c?command=sh", "/containerLogs/ns/here/c", "/nonsense"] {
        assert_eq!(fixture.get(path, None, None).await.unwrap().0, 401, "{path} without credentials");
        assert_eq!(fixture.get(path, Some("wrong"), None).await.unwrap().0, 401, "{path} with a wrong token");
        assert_eq!(fixture.get(path, Some("guest"), None).await.unwrap().0, 403, "{path} without the right");
    }
    assert_eq!(fixture.get("/healthz", Some("admin"), None).await.unwrap(), (200, "ok".into()));
}

#[tokio::test]
async fn only_certificates_of_the_authority_are_accepted() {
    let fixture = Fixture::open().await;
    let good = fixture.clients.issue("admin");
    assert_eq!(fixture.get("/healthz", None, Some(good)).await.unwrap(), (200, "ok".into()));
    let bad = fixture.servers.issue("kube-apiserver");
    assert!(fixture.get("/healthz", Some("admin"), Some(bad)).await.is_err(), "refused before any request");
}

#[tokio::test]
async fn the_user_of_a_certificate_must_be_authorised() {
    let fixture = Fixture::open().await;
    let exec = "/exec/ns/here/c?command=sh";
    let client = [(DnType::CommonName, "kube-apiserver-kubelet-client"), (DnType::OrganizationName, "system:masters")];
    let control_plane = fixture.clients.issue_to("x", &client);
    // A plain request for exec lacks its upgrade: it was let through.
    assert_eq!(fixture.get(exec, None, Some(control_plane)).await.unwrap().0, 400);
    let guest = fixture.clients.issue("guest");
    for path in ["/healthz", exec, "/containerLogs/ns/here/c", "/pods"] {
        let refused = fixture.get(path, None, Some(guest.clone())).await.unwrap();
        assert_eq!(refused.0, 403, "{path}: {refused:?}");
        assert!(refused.1.contains("user=guest"), "{refused:?}");
    }
    // The certificate's user counts, as in Kubernetes, not that of a token beside it.
    assert_eq!(fixture.get("/healthz", Some("admin"), Some(guest)).await.unwrap().0, 403);
    let nameless = fixture.clients.issue_to("x", &[(DnType::OrganizationName, "system:masters")]);
    assert_eq!(fixture.get("/healthz", None, Some(nameless)).await.unwrap().0, 401);
}

#[tokio::test]
async fn only_pods_of_this_node_are_reached() {
    let fixture = Fixture::open().await;
    let elsewhere = fixture.get("/containerLogs/ns/elsewhere/c", Some("admin"), None).await.unwrap();
    assert_eq!(elsewhere.0, 404, "{elsewhere:?}");
    let here = fixture.get("/containerLogs/ns/here/c", Some("admin"), None).await.unwrap();
    assert_eq!(here.0, 503, "the backend of this test runs nothing: {here:?}");
    let plain_exec = fixture.get("/exec/ns/here/c?command=sh", Some("admin"), None).await.unwrap();
    assert_eq!(plain_exec.0, 400, "exec needs an upgrade: {plain_exec:?}");
}

/// A browser sends a certificate that its user installed with requests of any page; a token it does not know.
#[tokio::test]
async fn pages_of_other_origins_cannot_use_a_certificate() {
    let fixture = Fixture::open().await;
    let admin = fixture.clients.issue("admin");
    for (headers, status) in [
        (&[("origin", "https://evil.example")][..], 403),
        (&[("origin", "null")], 403),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("origin", "https://localhost")], 200),
        // The page of a dashboard whose stream the API server passes on.
        (&[("origin", "https://dashboard.example"), ("x-forwarded-for", "10.0.0.1")], 200),
    ] {
        let answer = fixture.get_with("/healthz", None, Some(admin.clone()), headers).await.unwrap();
        assert_eq!(answer.0, status, "{headers:?}: {answer:?}");
        assert_eq!(fixture.get_with("/healthz", Some("admin"), None, headers).await.unwrap().0, 200, "{headers:?}");
    }
}

/// Clients that connect and send nothing must not keep the API server out.
#[tokio::test]
async fn requests_are_answered_at_once_during_a_flood_of_idle_connections() {
    let fixture = Fixture::open().await;
    let mut idle = Vec::new();
    for _ in 0..super::MAX_CONNECTIONS + 100 {
        idle.push(TcpStream::connect(fixture.kubelet.address).await.unwrap());
    }
    let limit = super::HANDSHAKE_TIMEOUT / 2;
    let answer = tokio::time::timeout(limit, fixture.get("/healthz", Some("admin"), None)).await;
    assert_eq!(answer.expect("answered at once").unwrap(), (200, "ok".into()));
    let closed = tokio::time::timeout(limit, tokio::io::AsyncReadExt::read(&mut idle[0], &mut [0; 1])).await;
    assert!(matches!(closed.expect("the oldest one is closed"), Ok(0) | Err(_)));
}
