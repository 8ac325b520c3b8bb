//! One page of metrics for the whole engine: what its controller and its router count.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{collections::BTreeSet, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::task::AbortOnDropHandle;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What ends a page of this format.
const END: &str = "# EOF";
/// A collector or two, and somebody with a browser.
const CONNECTIONS: usize = 16;
const HEADERS: Duration = Duration::from_secs(10);

/// Renders one part's page.
pub(crate) type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// The listener; dropping it ends it.
pub(crate) struct MetricsServer {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl MetricsServer {
    pub(crate) async fn open(wanted: SocketAddr, pages: Vec<Page>) -> Result<Self> {
        let listener = TcpListener::bind(wanted).await.with_context(|| format!("cannot serve metrics on {wanted}"))?;
        let address = listener.local_addr()?;
        let serving = AbortOnDropHandle::new(tokio::spawn(serve(listener, pages.into())));
        Ok(Self { address, _serving: serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, pages: Arc<[Page]>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let reply = answer(&request, &pages);
                async move { Ok::<_, Infallible>(reply) }
            });
            // How a collector's connection ends is the collector's business.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            drop(slot);
        });
    }
}

fn answer(request: &Request<Incoming>, pages: &[Page]) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, CONTENT_TYPE, join(pages.iter().map(|page| page()))),
        (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is /metrics and /healthz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// One page of several: a family that more than one part has is taken from the first.
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

/// The family that a line of description begins.
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
}
