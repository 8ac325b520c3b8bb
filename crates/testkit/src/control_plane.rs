//! A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok.
//!
//! The programs are built by `scripts/control-plane build` and cached outside the tree. Each control plane has its own
//! ports, keys and folder and ends with the process that owns it, also when that panics or is killed. There is no
//! network beyond loopback, no kubelet and no kube-proxy: Pods run on kwok's fake nodes (no process is started) or on
//! our own node, which joins with [`ControlPlane::node_credentials`].

mod credentials;
mod identity;
mod nodes;
mod programs;
mod requests;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, bail};
use kube::Client;
use tokio::sync::OnceCell;

pub use self::{
    credentials::NodeCredentials,
    nodes::{FAKE_NODE_TAINT, FakeNodes},
    requests::{RequestCounts, Requests},
};
use self::{
    credentials::{Authority, write},
    identity::Identity,
    programs::{Program, find_programs},
};

/// Timeout for the start. A cold start takes four seconds; on a machine that compiles at the same time it takes longer.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Maximum number of start attempts: another process may take a port between choosing it and listening on it.
const ATTEMPTS: usize = 3;

/// Configuration of a control plane.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneConfig {
    /// Write every request (user, object, response status; no bodies) to [`ControlPlane::audit_log`].
    pub audit: bool,
    /// Further arguments of kube-apiserver.
    pub apiserver_arguments: Vec<String>,
}

/// A running control plane; dropping it ends it.
pub struct ControlPlane {
    address: SocketAddr,
    authority: Authority,
    admin: Identity,
    binaries: PathBuf,
    // Declared before `folder`, so that the programs end before their folder is removed.
    programs: Vec<Program>,
    folder: tempfile::TempDir,
}

impl ControlPlane {
    /// Starts a control plane, or returns an error that names the missing programs.
    pub async fn start(config: ControlPlaneConfig) -> anyhow::Result<Self> {
        let binaries = find_programs()?;
        let mut attempt = 1;
        loop {
            match Self::try_start(&config, &binaries).await {
                Err(error) if attempt < ATTEMPTS && format!("{error:#}").contains("address already in use") => {
                    attempt += 1
                }
                outcome => return outcome,
            }
        }
    }

    /// Whether the control plane's programs are built. If not, prints that the test is skipped, or panics when `CI` is
    /// set.
    pub fn available_or_skip() -> bool {
        let Err(missing) = find_programs() else { return true };
        assert!(std::env::var_os("CI").is_none(), "a real control plane is required with CI set: {missing:#}");
        #[expect(clippy::print_stderr, reason = "the only way a test can say that it skips")]
        {
            eprintln!("SKIPPED: {missing:#}");
        }
        false
    }

    /// Starts a control plane, or skips as [`Self::available_or_skip`] does.
    #[expect(clippy::panic, reason = "a test helper fails the test")]
    pub async fn start_or_skip(config: ControlPlaneConfig) -> Option<Self> {
        if !Self::available_or_skip() {
            return None;
        }
        match Self::start(config).await {
            Ok(started) => Some(started),
            Err(error) => panic!("the control plane did not start: {error:#}"),
        }
    }

    /// The control plane that all tests of a process share; each test uses namespaces of its own. It ends with the
    /// process.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<ControlPlane>> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start_or_skip(ControlPlaneConfig::default())).await.as_ref()
    }

    async fn try_start(config: &ControlPlaneConfig, binaries: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("control-plane-").tempdir()?;
        let authority = Authority::generate()?;
        let [etcd, peer, port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let admin = Identity::token("admin", "system:masters");
        let mut plane = Self { address, authority, admin, binaries: binaries.to_owned(), programs: Vec::new(), folder };
        plane.start_etcd(etcd, peer)?;
        let (manager, scheduler) = plane.start_apiserver(config, etcd)?;
        plane.wait_until_ready().await?;
        plane.start_managers(&manager, &scheduler)?;
        plane.wait_until_managed().await?;
        Ok(plane)
    }

    fn run(&mut self, program: &str, arguments: &[String]) -> anyhow::Result<()> {
        self.programs.push(Program::start(&self.binaries.join(program), arguments, self.folder.path())?);
        Ok(())
    }

    fn start_etcd(&mut self, port: u16, peer: u16) -> anyhow::Result<()> {
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        self.run(
            "etcd",
            &[
                format!("--data-dir={}", self.path("etcd").display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                // No data needs to outlive the test.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
        )
    }

    /// Returns the identities of the controller manager and the scheduler.
    fn start_apiserver(&mut self, config: &ControlPlaneConfig, etcd: u16) -> anyhow::Result<(Identity, Identity)> {
        let manager = Identity::token("system:kube-controller-manager", "");
        let scheduler = Identity::token("system:kube-scheduler", "");
        let file = |name: &str, content: &str| write(&self.path(name), content);
        let server = self.authority.server("kube-apiserver", &["kubernetes", "kubernetes.default.svc"])?;
        let kubelet_client = self.authority.client("kube-apiserver-kubelet-client", "system:masters")?;
        file("ca.crt", &self.authority.certificate())?;
        file("server.crt", &server.certificate)?;
        file("server.key", &server.key)?;
        file("kubelet-client.crt", &kubelet_client.certificate)?;
        file("kubelet-client.key", &kubelet_client.key)?;
        let (private, public) = credentials::signing_keys()?;
        file("service-account.key", &private)?;
        file("service-account.pub", &public)?;
        file("tokens.csv", &[&self.admin, &manager, &scheduler].map(Identity::token_line).concat())?;
        file("audit-policy.yaml", AUDIT_POLICY)?;
        file("admin.kubeconfig", &self.kubeconfig_of(&self.admin))?;
        let at = |name: &str| self.path(name).display().to_string();
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.address.port()),
            format!("--tls-cert-file={}", at("server.crt")),
            format!("--tls-private-key-file={}", at("server.key")),
            format!("--client-ca-file={}", at("ca.crt")),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", at("service-account.key")),
            format!("--service-account-key-file={}", at("service-account.pub")),
            format!("--kubelet-client-certificate={}", at("kubelet-client.crt")),
            format!("--kubelet-client-key={}", at("kubelet-client.key")),
            format!("--kubelet-certificate-authority={}", at("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        ];
        if config.audit {
            arguments.push(format!("--audit-policy-file={}", at("audit-policy.yaml")));
            arguments.push(format!("--audit-log-path={}", self.audit_log().display()));
            arguments.push("--audit-log-mode=blocking".to_owned());
        }
        arguments.extend(config.apiserver_arguments.iter().cloned());
        self.run("kube-apiserver", &arguments)?;
        Ok((manager, scheduler))
    }

    fn start_managers(&mut self, manager: &Identity, scheduler: &Identity) -> anyhow::Result<()> {
        let kubeconfig = |plane: &Self, name: &str, identity: &Identity| {
            let path = plane.path(name);
            write(&path, &plane.kubeconfig_of(identity)).map(|()| format!("--kubeconfig={}", path.display()))
        };
        let quiet = ["--leader-elect=false".to_owned(), "--secure-port=0".to_owned()];
        let mut arguments = vec![
            kubeconfig(self, "manager.kubeconfig", manager)?,
            // Without it RBAC denies most controllers.
            "--use-service-account-credentials=true".to_owned(),
            "--controllers=*,-node-ipam-controller".to_owned(),
            format!("--service-account-private-key-file={}", self.path("service-account.key").display()),
            format!("--root-ca-file={}", self.path("ca.crt").display()),
        ];
        arguments.extend(quiet.iter().cloned());
        self.run("kube-controller-manager", &arguments)?;
        let mut arguments = vec![kubeconfig(self, "scheduler.kubeconfig", scheduler)?];
        arguments.extend(quiet);
        self.run("kube-scheduler", &arguments)?;
        let stages = self.path("stages.yaml");
        write(&stages, nodes::STAGES)?;
        self.run(
            "kwok",
            &[
                format!("--kubeconfig={}", self.kubeconfig().display()),
                format!("--config={}", stages.display()),
                // Only fake nodes: otherwise kwok would take over the Pods of our own node.
                format!("--manage-nodes-with-annotation-selector={}={}", nodes::ANNOTATION, nodes::FAKE),
                // kwok renews each node's Lease at a quarter of this. That adds few writes to a measurement, and is
                // well within the 50 s after which Kubernetes marks a node as unreachable and its Pods as not Ready.
                "--node-lease-duration-seconds=80".to_owned(),
            ],
        )
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client().await?;
        self.wait("kube-apiserver is ready", || async {
            let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
            client.request_text(request).await
        })
        .await
    }

    /// Namespaces get their ServiceAccount from the controller manager, and no Pod can be created before.
    async fn wait_until_managed(&mut self) -> anyhow::Result<()> {
        let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
            kube::Api::namespaced(self.client().await?, "default");
        self.wait("kube-controller-manager works", || accounts.get("default")).await
    }

    async fn wait<T, F: Future<Output = Result<T, kube::Error>>>(
        &mut self,
        what: &str,
        mut look: impl FnMut() -> F,
    ) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + READY_WITHIN;
        loop {
            let seen = tokio::time::timeout_at(deadline, look()).await;
            let problem = match seen {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no response".to_owned(),
            };
            for program in &mut self.programs {
                program.check_running()?;
            }
            if tokio::time::Instant::now() >= deadline {
                let logs: Vec<String> = self.programs.iter().map(Program::log_tail).collect();
                bail!("{what}: not within {READY_WITHIN:?}: {problem}\n{}", logs.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder with the control plane's files, which is removed with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A kubeconfig with all permissions.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("admin.kubeconfig")
    }

    /// Address of kube-apiserver.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The audit log, one JSON object per request; exists when auditing is enabled.
    pub fn audit_log(&self) -> PathBuf {
        self.path("audit.log")
    }

    /// A client with all permissions, for the Tokio runtime it is called on.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client_from(&self.kubeconfig()).await
    }

    /// kubectl with all permissions.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// helm with all permissions, and without the user's own helm configuration.
    pub fn helm(&self) -> Command {
        let mut command = Command::new(self.binaries.join("helm"));
        let folder = |name: &str| self.path("helm").join(name);
        command
            .env("KUBECONFIG", self.kubeconfig())
            .env("HELM_CACHE_HOME", folder("cache"))
            .env("HELM_CONFIG_HOME", folder("config"))
            .env("HELM_DATA_HOME", folder("data"));
        command
    }
}

/// A client from a kubeconfig file.
pub async fn client_from(kubeconfig: &Path) -> anyhow::Result<Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Distinct ports that were free when this function returned.
fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Audit policy: metadata of each request and its response, once per request.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
";

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // Signals all programs first; dropping each one then waits for its end.
        self.programs.iter_mut().for_each(Program::stop);
    }
}
