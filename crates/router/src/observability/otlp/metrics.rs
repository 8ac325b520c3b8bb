//! Converts the text exposition format into OTLP metrics, so that both ways of collecting show the same numbers.

use std::collections::BTreeMap;

use agent_sandbox_telemetry::messages::{
    Data, ExportMetricsRequest, Gauge, Histogram, HistogramPoint, KeyValue, Metric, NumberPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};

use super::service;

const CUMULATIVE: i32 = 2;

/// One sample line.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

/// The histogram series of one label set, as far as they are read.
#[derive(Default)]
struct Series {
    bounds: Vec<f64>,
    cumulative: Vec<u64>,
    sum: f64,
    count: u64,
}

/// Builds an export of everything in `text`.
pub(super) fn request(text: &str, started: u64, now: u64) -> ExportMetricsRequest {
    let kinds: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).filter_map(|line| line.split_once(' ')).collect();
    let mut metrics = Vec::new();
    for (name, kind) in kinds {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(parse);
        let samples: Vec<Sample<'_>> = samples.filter(|sample| belongs(sample.name, name, kind)).collect();
        if samples.is_empty() {
            continue;
        }
        metrics.push(match kind {
            "histogram" => Metric { name: name.to_owned(), data: Some(histogram(&samples, started, now)) },
            "counter" => {
                let sum = Sum {
                    data_points: points(&samples, started, now),
                    aggregation_temporality: CUMULATIVE,
                    is_monotonic: true,
                };
                Metric { name: format!("{name}_total"), data: Some(Data::Sum(sum)) }
            }
            _ => {
                let gauge = Gauge { data_points: points(&samples, started, now) };
                Metric { name: name.to_owned(), data: Some(Data::Gauge(gauge)) }
            }
        });
    }
    ExportMetricsRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(service().resource()),
            scope_metrics: vec![ScopeMetrics { scope: Some(service().scope()), metrics }],
        }],
    }
}

fn belongs(sample: &str, name: &str, kind: &str) -> bool {
    match sample.strip_prefix(name) {
        Some("") => kind != "histogram",
        Some("_total") => kind == "counter",
        Some("_bucket" | "_sum" | "_count") => kind == "histogram",
        _ => false,
    }
}

/// Parses `name{label="value",…} number`; the router's own labels contain no quotes.
fn parse(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let labels = labels
        .split("\",")
        .filter_map(|label| label.split_once("=\""))
        .map(|(key, value)| (key, value.trim_end_matches('"')))
        .collect();
    Some(Sample { name, labels, value: value.parse().ok()? })
}

fn attributes(labels: &[(&str, &str)]) -> Vec<KeyValue> {
    labels.iter().filter(|(key, _)| *key != "le").map(|(key, value)| KeyValue::text(key, value)).collect()
}

fn points(samples: &[Sample<'_>], started: u64, now: u64) -> Vec<NumberPoint> {
    let point = |sample: &Sample<'_>| NumberPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: started,
        time_unix_nano: now,
        as_double: sample.value,
    };
    samples.iter().map(point).collect()
}

fn histogram(samples: &[Sample<'_>], started: u64, now: u64) -> Data {
    let mut by_labels: BTreeMap<Vec<(&str, &str)>, Series> = BTreeMap::new();
    for sample in samples {
        let labels: Vec<_> = sample.labels.iter().copied().filter(|(key, _)| *key != "le").collect();
        let series = by_labels.entry(labels).or_default();
        if sample.name.ends_with("_sum") {
            series.sum = sample.value;
        } else if sample.name.ends_with("_count") {
            series.count = sample.value as u64;
        } else if let Some((_, bound)) = sample.labels.iter().find(|(key, _)| *key == "le") {
            series.cumulative.push(sample.value as u64);
            series.bounds.extend(bound.parse::<f64>().ok().filter(|bound| bound.is_finite()));
        }
    }
    let point = |(labels, series): (Vec<(&str, &str)>, Series)| {
        let mut before = 0;
        let bucket_counts = series.cumulative.iter().map(|count| {
            let own = count.saturating_sub(before);
            before = *count;
            own
        });
        HistogramPoint {
            attributes: attributes(&labels),
            start_time_unix_nano: started,
            time_unix_nano: now,
            count: series.count,
            sum: Some(series.sum),
            bucket_counts: bucket_counts.collect(),
            explicit_bounds: series.bounds,
        }
    };
    let data_points = by_labels.into_iter().map(point).collect();
    Data::Histogram(Histogram { data_points, aggregation_temporality: CUMULATIVE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observability::metrics::{MethodLabel, Metrics, RecentSeries};
    use std::time::Duration;

    #[test]
    fn exported_numbers_are_the_exposed_ones() {
        let metrics = Metrics::default();
        for ms in [1, 20, 20_000] {
            let namespace = Some(&"team-a".into());
            metrics.request(&RecentSeries::default(), MethodLabel::Get, 200, namespace, Duration::from_millis(ms));
        }
        let request = request(&metrics.render(), 1, 2);
        let exported = &request.resource_metrics[0].scope_metrics[0].metrics;
        let find = |name: &str| exported.iter().find(|metric| metric.name == name).unwrap().data.clone().unwrap();
        let Data::Sum(requests) = find("sandbox_router_requests_total") else { panic!() };
        assert_eq!(requests.data_points[0].as_double, 3.0);
        assert!(requests.data_points[0].attributes.contains(&KeyValue::text("sandbox_namespace", "team-a")));
        let Data::Histogram(durations) = find("sandbox_router_request_duration_seconds") else { panic!() };
        let point = &durations.data_points[0];
        assert_eq!((point.count, point.bucket_counts.iter().sum::<u64>()), (3, 3));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(matches!(find("sandbox_router_inflight_requests"), Data::Gauge(_)));
    }
}
