//! The API server's own request counts, by verb, resource and status, from its metrics.

use std::collections::BTreeMap;

use super::ControlPlane;

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requests {
    pub verb: String,
    /// Resource, with `/subresource` when there is one.
    pub resource: String,
    pub code: u16,
}

/// Number of completed requests by kind.
pub type RequestCounts = BTreeMap<Requests, u64>;

impl ControlPlane {
    /// All requests completed since the start.
    pub async fn request_counts(&self) -> anyhow::Result<RequestCounts> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let page = self.client().await?.request_text(request).await?;
        Ok(parse(&page))
    }
}

/// Comparing and classifying counts.
impl Requests {
    pub fn since(before: &RequestCounts, after: &RequestCounts) -> RequestCounts {
        after
            .iter()
            .map(|(request, count)| (request.clone(), count - before.get(request).copied().unwrap_or(0)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub fn is_write(&self) -> bool {
        ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&self.verb.as_str())
    }

    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

fn parse(page: &str) -> RequestCounts {
    let mut counts = RequestCounts::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else { continue };
        let Some((labels, value)) = rest.rsplit_once("} ") else { continue };
        let label = |name: &str| {
            labels
                .split(',')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
                .unwrap_or_default()
        };
        let (resource, subresource) = (label("resource"), label("subresource"));
        let resource = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        let request =
            Requests { verb: label("verb").to_owned(), resource, code: label("code").parse().unwrap_or_default() };
        // Prometheus values are floats; counts are exact up to 2^53.
        let count = value.split(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or_default();
        *counts.entry(request).or_default() += count as u64;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_page() {
        let page = "# TYPE apiserver_request_total counter\n\
            apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"binding\",verb=\"POST\",version=\"v1\"} 3\n\
            apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"} 1.5e+03\n\
            apiserver_request_duration_seconds_count{verb=\"GET\"} 4\n";
        let counts = parse(page);
        let binding = Requests { verb: "POST".into(), resource: "pods/binding".into(), code: 201 };
        let get = Requests { verb: "GET".into(), resource: "pods".into(), code: 200 };
        assert!(binding.is_write() && binding.succeeded() && !get.is_write());
        assert_eq!(counts, RequestCounts::from([(binding.clone(), 3), (get.clone(), 1500)]));
        let later = RequestCounts::from([(binding.clone(), 5), (get, 1500)]);
        assert_eq!(Requests::since(&counts, &later), RequestCounts::from([(binding, 2)]));
    }
}
