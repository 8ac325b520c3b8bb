//! One page of metrics for the whole engine: those of its controller and of its router.

use crate::EngineError;
use agent_sandbox_connections::Connections;
use agent_sandbox_protocol::web::AllowedHosts;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{collections::BTreeSet, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The last line of a page in this format.
const END: &str = "# EOF";
/// Maximum number of connections at a time. A collector or two and a person with a browser need fewer.
const MAX_CONNECTIONS: usize = 16;
/// Timeout for a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Renders the metrics of one part of the engine.
pub(crate) type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// The listener for metrics; closed when dropped.
pub(crate) struct MetricsServer {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl MetricsServer {
    pub(crate) async fn open(wanted: SocketAddr, pages: Vec<Page>) -> Result<Self, EngineError> {
        let failed = |source| EngineError::ListenMetrics { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let serving = AbortOnDropHandle::new(tokio::spawn(serve(listener, pages.into())));
        Ok(Self { address, _serving: serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, pages: Arc<[Page]>) {
    let connections = Connections::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            connections.make_room();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // A connection without a place is closed by being dropped.
        let Some(place) = connections.add(peer) else { continue };
        let (pages, own) = (pages.clone(), place.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = respond(&request, &pages);
                // There is nothing to authenticate with: a successful request is what a collector sends.
                if response.status().is_success() {
                    own.set_authenticated();
                }
                async move { Ok::<_, Infallible>(response) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // A connection that the client breaks off needs no report.
            tokio::select! {
                _ = served => {}
                _ = place.must_close(|| false) => {}
            }
        });
    }
}

fn respond<B>(request: &Request<B>, pages: &[Page]) -> Response<Full<Bytes>> {
    // A web page with a domain name of its own for this address must not read the metrics.
    let foreign = AllowedHosts::loopback().check(request).is_err();
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        _ if foreign => {
            (StatusCode::MISDIRECTED_REQUEST, "text/plain", "call this server localhost or 127.0.0.1\n".to_owned())
        }
        (&Method::GET, "/metrics") => (StatusCode::OK, CONTENT_TYPE, join(pages.iter().map(|page| page()))),
        (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is /metrics and /healthz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// Joins pages to one. A metric family that several pages hold is taken from the first.
fn join(pages: impl Iterator<Item = String>) -> String {
    let mut seen = BTreeSet::new();
    let mut joined = String::new();
    for page in pages {
        let mut own = BTreeSet::new();
        let mut repeated = false;
        for line in page.lines().filter(|line| *line != END) {
            if let Some(family) = family(line) {
                repeated = seen.contains(family);
                own.insert(family.to_owned());
            }
            if !repeated {
                joined.push_str(line);
                joined.push('\n');
            }
        }
        seen.append(&mut own);
    }
    joined + END + "\n"
}

/// The page of the node's egress gateway.
pub(crate) fn egress(counters: &agent_sandbox_egress::Metrics) -> String {
    let mut page = "# HELP agent_sandbox_egress_decisions What sandboxes with egress rules asked for, by decision\n\
                    # TYPE agent_sandbox_egress_decisions counter\n"
        .to_owned();
    for (protocol, decision, number) in counters.decisions() {
        page.push_str(&format!(
            "agent_sandbox_egress_decisions_total{{protocol=\"{protocol}\",decision=\"{decision}\"}} {number}\n"
        ));
    }
    let (sent, received) = counters.bytes();
    page + "# HELP agent_sandbox_egress_bytes Bytes of sandboxes that passed the egress proxy\n\
            # TYPE agent_sandbox_egress_bytes counter\n"
        + &format!("agent_sandbox_egress_bytes_total{{direction=\"sent\"}} {sent}\n")
        + &format!("agent_sandbox_egress_bytes_total{{direction=\"received\"}} {received}\n{END}\n")
}

/// The metric family that a `HELP`, `TYPE` or `UNIT` line describes.
fn family(line: &str) -> Option<&str> {
    let rest = ["# HELP ", "# TYPE ", "# UNIT "].iter().find_map(|start| line.strip_prefix(start))?;
    rest.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_joined_without_repeating_a_family() {
        let first = "# HELP a x\n# TYPE a counter\na_total 1\n# HELP build y\n# TYPE build gauge\nbuild 1\n# EOF\n";
        let second = "# HELP build y\n# TYPE build gauge\nbuild 1\n# HELP b z\n# TYPE b gauge\nb 2\n# EOF\n";
        let joined = join([first.to_owned(), second.to_owned()].into_iter());
        assert_eq!(joined.matches("build 1").count(), 1);
        assert_eq!(joined.matches(END).count(), 1);
        assert!(joined.contains("a_total 1") && joined.contains("b 2") && joined.ends_with("# EOF\n"), "{joined}");
    }

    /// More idle connections than the page has places, all of one user: the next request is answered at once.
    #[tokio::test]
    async fn idle_connections_of_one_user_give_way() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let page: Page = Arc::new(|| "# EOF\n".to_owned());
        let server = MetricsServer::open(([127, 0, 0, 1], 0).into(), vec![page]).await.unwrap();
        let mut idle = Vec::new();
        for _ in 0..4 * MAX_CONNECTIONS {
            idle.push(tokio::net::TcpStream::connect(server.address()).await.unwrap());
        }
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(HEADER_TIMEOUT / 2, stream.read_to_string(&mut answer)).await;
        read.expect("answered at once").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let closed = tokio::time::timeout(HEADER_TIMEOUT / 2, idle[0].read(&mut [0; 1])).await;
        assert!(matches!(closed.expect("the oldest one is closed"), Ok(0) | Err(_)));
    }

    #[test]
    fn a_web_page_with_a_name_of_its_own_reads_no_metrics() {
        let page: Page = Arc::new(|| "# EOF\n".to_owned());
        for (host, status) in
            [("localhost:9090", 200), ("127.0.0.1:9090", 200), ("evil.example", 421), ("[::1]evil.example", 421)]
        {
            let request = Request::get("/metrics").header("host", host).body(()).unwrap();
            assert_eq!(respond(&request, std::slice::from_ref(&page)).status(), status, "{host}");
        }
    }
}
