//! OpenTelemetry's standard environment variables, as far as an exporter of spans needs them.

use std::time::Duration;

/// Variable with the endpoint for all signals.
pub const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Variable with the endpoint for spans.
pub const OTLP_TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Variable with the endpoint for metrics.
pub const OTLP_METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
/// Default endpoint of a collector.
pub const DEFAULT_ENDPOINT: &str = "http://localhost:4317";

const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
const BATCH_DELAY: &str = "OTEL_BSP_SCHEDULE_DELAY";
const BATCH_QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
const BATCH_SIZE: &str = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";

/// A variable whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is \"{value}\", but must be {expected}")]
pub struct SettingError {
    pub variable: &'static str,
    pub value: String,
    pub expected: &'static str,
}

/// The service that reports the spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    /// Name of the instrumentation scope: the library that creates the spans. `version` is the library's version.
    pub scope: &'static str,
    pub version: &'static str,
    /// Further resource attributes, such as the Pod's name.
    pub attributes: Vec<(String, String)>,
}

/// Decides which traces are exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Whether a span with a parent is exported exactly when its parent is.
    pub follow_parent: bool,
    /// The fraction of all other traces that is exported, from 0 to 1.
    pub ratio: f64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { follow_parent: true, ratio: 1.0 }
    }
}

impl Sampler {
    /// Whether a span is exported. This depends on the trace id alone, so that every process decides the same.
    pub fn samples(&self, trace_id: [u8; 16], parent_sampled: Option<bool>) -> bool {
        match parent_sampled.filter(|_| self.follow_parent) {
            Some(sampled) => sampled,
            None => {
                let [.., a, b, c, d, e, f, g, h] = trace_id;
                #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 53 bits")]
                let place = (u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11) as f64 / (1_u64 << 53) as f64;
                place < self.ratio
            }
        }
    }
}

/// The endpoint for spans, and how spans are sampled, queued and batched.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportSettings {
    pub endpoint: String,
    pub service: Service,
    pub sampler: Sampler,
    /// Maximum number of queued spans; further spans are dropped.
    pub queue: usize,
    /// Maximum number of spans per export request.
    pub batch: usize,
    /// Maximum time that a span waits for its batch to fill.
    pub delay: Duration,
}

impl ExportSettings {
    /// Settings with the defaults of the OpenTelemetry specification.
    pub fn new(endpoint: &str, service: Service) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            service,
            sampler: Sampler::default(),
            queue: 2048,
            batch: 512,
            delay: Duration::from_secs(5),
        }
    }

    /// Reads the settings from environment variables, or returns every invalid one.
    pub fn from_environment(
        service: Service,
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Vec<SettingError>> {
        let set = |variable: &str| read(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let endpoint = set(OTLP_TRACES_ENDPOINT).or_else(|| set(OTLP_ENDPOINT));
        let mut settings = Self::new(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT), service);
        let mut errors = Vec::new();
        for (variable, place) in [(BATCH_QUEUE, &mut settings.queue), (BATCH_SIZE, &mut settings.batch)] {
            if let Some(value) = set(variable) {
                match value.parse().ok().filter(|number| *number > 0) {
                    Some(number) => *place = number,
                    None => errors.push(SettingError { variable, value, expected: "a whole number above 0" }),
                }
            }
        }
        settings.batch = settings.batch.min(settings.queue);
        if let Some(value) = set(BATCH_DELAY) {
            match value.parse() {
                Ok(milliseconds) => settings.delay = Duration::from_millis(milliseconds),
                Err(_) => errors.push(SettingError { variable: BATCH_DELAY, value, expected: "milliseconds" }),
            }
        }
        match sampler(set(SAMPLER), set(SAMPLER_ARGUMENT)) {
            Ok(sampler) => settings.sampler = sampler,
            Err(error) => errors.push(error),
        }
        match attributes(set(RESOURCE_ATTRIBUTES)) {
            Ok(attributes) => settings.service.attributes.extend(attributes),
            Err(error) => errors.push(error),
        }
        if let Some(place) = settings.service.attributes.iter().position(|(key, _)| key == "service.name") {
            settings.service.name = settings.service.attributes.remove(place).1;
        }
        settings.service.name = set(SERVICE_NAME).unwrap_or(settings.service.name);
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }
}

fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, SettingError> {
    let Some(name) = name else { return Ok(Sampler::default()) };
    let follow_parent = name.starts_with("parentbased_");
    let ratio = match name.trim_start_matches("parentbased_") {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => {
            let value = argument.unwrap_or_else(|| "1".to_owned());
            let ratio = value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or(SettingError { variable: SAMPLER_ARGUMENT, value, expected: "a number from 0 to 1" })?
        }
        _ => {
            let expected = "always_on, always_off or traceidratio, or one of these after parentbased_";
            return Err(SettingError { variable: SAMPLER, value: name, expected });
        }
    };
    Ok(Sampler { follow_parent, ratio })
}

fn attributes(text: Option<String>) -> Result<Vec<(String, String)>, SettingError> {
    let text = text.unwrap_or_default();
    text.split(',')
        .filter(|pair| !pair.trim().is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(|| {
                SettingError { variable: RESOURCE_ATTRIBUTES, value: text.clone(), expected: "key=value,key=value" }
            })?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Service {
        Service { name: "mine".to_owned(), scope: "lib", version: "1", attributes: Vec::new() }
    }

    fn read(variables: &[(&str, &str)]) -> Result<ExportSettings, Vec<SettingError>> {
        let found = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ExportSettings::from_environment(service(), found)
    }

    #[test]
    fn an_empty_environment_means_the_defaults() {
        assert_eq!(read(&[]), Ok(ExportSettings::new(DEFAULT_ENDPOINT, service())));
        assert_eq!(read(&[(OTLP_ENDPOINT, " ")]), Ok(ExportSettings::new(DEFAULT_ENDPOINT, service())));
    }

    #[test]
    fn every_variable_is_honoured() {
        let settings = read(&[
            (OTLP_ENDPOINT, "http://all:4317"),
            (OTLP_TRACES_ENDPOINT, "http://spans:4317"),
            (RESOURCE_ATTRIBUTES, "k8s.pod.name=a, service.name = other"),
            (SAMPLER, "traceidratio"),
            (SAMPLER_ARGUMENT, "0.25"),
            (BATCH_DELAY, "20"),
            (BATCH_QUEUE, "100"),
            (BATCH_SIZE, "400"),
        ])
        .unwrap();
        assert_eq!(settings.endpoint, "http://spans:4317");
        assert_eq!(settings.service.name, "other");
        assert_eq!(settings.service.attributes, [("k8s.pod.name".to_owned(), "a".to_owned())]);
        assert_eq!(settings.sampler, Sampler { follow_parent: false, ratio: 0.25 });
        assert_eq!((settings.delay, settings.queue, settings.batch), (Duration::from_millis(20), 100, 100));
        let named = read(&[(RESOURCE_ATTRIBUTES, "service.name=other"), (SERVICE_NAME, "last")]).unwrap();
        assert_eq!(named.service.name, "last");
    }

    #[test]
    fn every_mistake_is_reported() {
        let errors = read(&[
            (BATCH_QUEUE, "0"),
            (BATCH_SIZE, "many"),
            (BATCH_DELAY, "5s"),
            (SAMPLER, "sometimes"),
            (RESOURCE_ATTRIBUTES, "a=b,c"),
        ])
        .unwrap_err();
        let named: Vec<&str> = errors.iter().map(|error| error.variable).collect();
        assert_eq!(named, [BATCH_QUEUE, BATCH_SIZE, BATCH_DELAY, SAMPLER, RESOURCE_ATTRIBUTES]);
        let argument = read(&[(SAMPLER, "parentbased_traceidratio"), (SAMPLER_ARGUMENT, "7")]).unwrap_err();
        assert_eq!(argument[0].variable, SAMPLER_ARGUMENT);
    }

    #[test]
    fn samplers_decide_by_parent_and_trace() {
        let (low, high) = ([0; 16], [0xff; 16]);
        let half = Sampler { follow_parent: true, ratio: 0.5 };
        assert!(half.samples(low, None) && !half.samples(high, None));
        assert!(half.samples(high, Some(true)) && !half.samples(low, Some(false)));
        let stubborn = Sampler { follow_parent: false, ratio: 1.0 };
        assert!(stubborn.samples(high, Some(false)), "always on means always");
        let off = sampler(Some("always_off".to_owned()), None).unwrap();
        assert!(!off.samples(low, Some(true)));
    }
}
