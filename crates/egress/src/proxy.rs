//! The transparent proxy: connections of sandboxes to ports 80 and 443 are diverted to it. It finds out which name a
//! connection is for, lets it pass to the address that the sandbox wanted if a rule allows the name and the name leads
//! there, and refuses it otherwise. TLS is not opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::gateway::{Gateway, refused};
use crate::log::{Outcome, Protocol, Record};
use crate::name::Name;
use crate::policy::{Decision, Denied};
use crate::sandbox::Sandbox;
use crate::tls;

mod http;
mod pump;

use pump::{Traffic, pump};

/// Maximum number of connections of all sandboxes.
const MAX_CONNECTIONS: usize = 8192;
/// Timeout for the first bytes of a connection.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for connecting to the destination.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

impl Record {
    /// Notes a denial and its rule.
    pub(crate) fn set_denied(&mut self, denied: &Denied) {
        self.decision = Outcome::Deny;
        self.reason = denied.to_string();
        if let Denied::Rule(rule) = denied {
            self.rule.clone_from(rule);
        }
    }
}

/// A diverted connection.
#[derive(Clone)]
struct Diverted {
    gateway: Arc<Gateway>,
    sandbox: Arc<Sandbox>,
    /// The address to which the sandbox connected.
    target: SocketAddrV4,
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>) {
    let all = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Without a place the connection is closed.
        let Ok(place) = Arc::clone(&all).try_acquire_owned() else { continue };
        let Some(diverted) = diverted(&stream, client, &gateway) else { continue };
        let Some(own_place) = diverted.sandbox.connection() else { continue };
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            match diverted.target.port() {
                443 => diverted.tls(stream).await,
                _ => http::serve(diverted, stream).await,
            }
            drop((place, own_place));
        });
    }
}

/// The sandbox and the destination of a connection. `None` for one of anybody else, and for one that was not diverted
/// but made to the proxy itself.
fn diverted(stream: &TcpStream, client: SocketAddr, gateway: &Arc<Gateway>) -> Option<Diverted> {
    let IpAddr::V4(client) = client.ip() else { return None };
    let target = rustix::net::sockopt::ip_original_dst(stream).ok()?;
    let own = stream.local_addr().ok()?;
    let sandbox = gateway.sandbox(client).filter(|_| own != SocketAddr::V4(target))?;
    Some(Diverted { gateway: Arc::clone(gateway), sandbox, target })
}

impl Diverted {
    fn record(&self, protocol: Protocol) -> Record {
        let mut record = self.gateway.record(&self.sandbox, protocol, Outcome::Deny);
        record.addresses = vec![*self.target.ip()];
        record.port = Some(self.target.port());
        record
    }

    /// Whether the name may be connected to at the target; the record says which rule decided, or why not.
    async fn decide(&self, name: &Name, record: &mut Record) -> bool {
        record.name = name.to_string();
        let rule = match self.sandbox.policy().decide(name, self.target.port()) {
            Decision::Allowed { rule } => rule,
            Decision::Denied(denied) => {
                record.set_denied(&denied);
                return false;
            }
        };
        let address: Ipv4Addr = *self.target.ip();
        if let Some(what) = refused(address) {
            record.reason = format!("{address} is {what}");
            return false;
        }
        if !self.gateway.leads_to(&self.sandbox, name, address).await {
            record.reason = format!("{name} does not lead to {address}");
            return false;
        }
        record.rule = rule;
        record.decision = Outcome::Allow;
        true
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.target)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Waits until the policy no longer allows the name.
    async fn until_denied(&self, name: &Name) {
        let mut changes = self.sandbox.policy_changes();
        loop {
            if !self.sandbox.policy().decide(name, self.target.port()).is_allowed() {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn tls(self, mut client: TcpStream) {
        let mut record = self.record(Protocol::Tls);
        let (hello, name) = match read_hello(&mut client).await {
            Ok(read) => read,
            Err(reason) => {
                record.reason = reason;
                return self.refuse_tls(client, record).await;
            }
        };
        record.sni = name.to_string();
        if !self.decide(&name, &mut record).await {
            return self.refuse_tls(client, record).await;
        }
        let mut upstream = match self.connect().await {
            Ok(stream) => stream,
            Err(error) => {
                record.decision = Outcome::Fail;
                record.reason = format!("cannot connect to {}: {error}", self.target);
                return self.gateway.write(&record);
            }
        };
        let traffic = Traffic::default();
        traffic.add_sent(hello.len());
        let exchange = async {
            upstream.write_all(&hello).await?;
            pump(&mut client, &mut upstream, &traffic).await
        };
        tokio::select! {
            _ = exchange => {}
            () = self.until_denied(&name) => record.reason = "ended because the rules have changed".to_owned(),
        }
        (record.bytes_sent, record.bytes_received) = traffic.bytes();
        record.time = Timestamp::now();
        self.gateway.write(&record);
    }

    /// Ends a handshake with an alert, so that the client fails at once.
    async fn refuse_tls(&self, mut client: TcpStream, record: Record) {
        self.gateway.write(&record);
        let _ = tokio::time::timeout(FIRST_BYTES_TIMEOUT, async {
            client.write_all(&tls::ACCESS_DENIED).await?;
            client.shutdown().await
        })
        .await;
    }
}

/// The bytes of a connection up to a complete ClientHello, and its server name; or why there is none.
async fn read_hello(client: &mut TcpStream) -> Result<(Vec<u8>, Name), String> {
    let read = async {
        let mut hello = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let length = client.read(&mut buffer).await.map_err(|error| error.to_string())?;
            if length == 0 {
                return Err("the connection ended before its TLS handshake was complete".to_owned());
            }
            hello.extend_from_slice(&buffer[..length]);
            match tls::server_name(&hello) {
                Ok(Some(name)) => return Ok((hello, name)),
                Ok(None) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    let late = || Err("no TLS handshake came in time".to_owned());
    tokio::time::timeout(FIRST_BYTES_TIMEOUT, read).await.unwrap_or_else(|_| late())
}
