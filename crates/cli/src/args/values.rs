//! Parsers for values of arguments: a mistake is reported before any command starts.

use agent_sandbox_api::sleep;
use agent_sandbox_engine::DefaultLimit;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// Parses `30`, `30s`, `5m`, `2h`, `1d`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, for example 30s or 5m".to_owned())?;
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("`{unit}` is not a unit of time; use ms, s, m, h or d")),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "that is too long".to_owned())
}

/// How long something is valid; `None` means without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime(pub(crate) Option<Duration>);

/// A duration, or `never` for no end.
pub(crate) fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    duration(text).map(|time| Lifetime(Some(time))).map_err(|error| format!("{error}; or write never"))
}

/// A rule about a name that a sandbox may reach.
pub(crate) fn egress_rule(text: &str) -> Result<String, String> {
    match agent_sandbox_egress::RuleSet::parse(text) {
        Ok(rules) if rules.is_empty() => Err("write a name such as pypi.org, *.example.com:443 or @python".to_owned()),
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.problem.to_string()),
    }
}

/// An idle time that a sandbox may have.
pub(crate) fn idle_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match (sleep::MIN_IDLE..=sleep::MAX_IDLE).contains(&time) {
        true => Ok(time),
        false => Err("write a time between 1s and 365d, for example 15m".to_owned()),
    }
}

/// Checks that a text is a Kubernetes quantity such as `512Mi` or `0.5`.
pub(crate) fn quantity(text: &str) -> Result<String, String> {
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let known = ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if number.parse::<f64>().is_ok() && known.contains(&unit) {
        return Ok(text.to_owned());
    }
    Err("write for example 512Mi, 1Gi or 0.5".to_owned())
}

/// A quantity, or `none` for no limit.
pub(crate) fn quantity_limit(text: &str) -> Result<DefaultLimit, String> {
    if text == NO_LIMIT {
        return Ok(DefaultLimit::Unlimited);
    }
    quantity(text).map(DefaultLimit::Quantity).map_err(|error| format!("{error}, or {NO_LIMIT}"))
}

/// A memory limit that is large enough for a sandbox to start, or `none` for no limit.
pub(crate) fn memory_limit(text: &str) -> Result<DefaultLimit, String> {
    match quantity_limit(text)? {
        DefaultLimit::Quantity(text) => memory(&text).map(DefaultLimit::Quantity),
        unlimited => Ok(unlimited),
    }
}

/// A number above zero, or `none` for no limit.
pub(crate) fn count_limit(text: &str) -> Result<DefaultLimit, String> {
    match text.parse::<u64>() {
        _ if text == NO_LIMIT => Ok(DefaultLimit::Unlimited),
        Ok(number) if number > 0 => Ok(DefaultLimit::Quantity(text.to_owned())),
        _ => Err(format!("write a number above 0, or {NO_LIMIT}")),
    }
}

const NO_LIMIT: &str = "none";

/// A DNS-1123 subdomain, as Kubernetes wants names.
pub(crate) fn object_name(text: &str) -> Result<String, String> {
    let label = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    if text.len() > 253 || !text.split('.').all(label) {
        return Err("use lower-case letters, digits and `-`, for example my-sandbox".to_owned());
    }
    Ok(text.to_owned())
}

/// Name of an existing sandbox or claim, also as `list -o name` prints it.
pub(crate) fn sandbox_name(text: &str) -> Result<String, String> {
    object_name(["sandbox/", "sandboxclaim/"].iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text))
}

/// Name of an existing snapshot, also as `snapshot list -o name` prints it.
pub(crate) fn snapshot_name(text: &str) -> Result<String, String> {
    object_name(text.strip_prefix("sandboxsnapshot/").unwrap_or(text))
}

/// `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("there is no name before the equals sign; write NAME=VALUE".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), value)),
            Err(_) => Err(format!("this shell has no variable `{text}`; write {text}=VALUE")),
        },
    }
}

/// `NAME=VALUE`, both not empty.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write two names with `=` between them".to_owned()),
    }
}

/// A network such as `10.88.0.0/16`.
pub(crate) fn cidr(text: &str) -> Result<String, String> {
    let invalid = || "write an address and a length, for example 10.88.0.0/16".to_owned();
    let (address, length) = text.split_once('/').ok_or_else(invalid)?;
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    let max_length = if address.is_ipv4() { 32 } else { 128 };
    match length.parse::<u8>() {
        Ok(length) if length <= max_length => Ok(text.to_owned()),
        _ => Err(invalid()),
    }
}

/// An absolute path of a folder that exists.
pub(crate) fn folder(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    match path.is_absolute() && path.is_dir() {
        true => Ok(path.to_owned()),
        false => Err("name a folder that exists, by its absolute path".to_owned()),
    }
}

/// `FIRST:BLOCKS` of user ids: a range outside the host's own users (below 65,536) and within 32 bits.
pub(crate) fn id_range(text: &str) -> Result<(u32, u32), String> {
    let range = text.split_once(':').and_then(|(first, blocks)| Some((first.parse().ok()?, blocks.parse().ok()?)));
    let (first, blocks): (u32, u32) = range.ok_or("write two numbers, for example 1879048192:4095")?;
    let end = u64::from(first) + u64::from(blocks) * 65_536;
    if first < 65_536 || blocks == 0 || end > u64::from(u32::MAX) {
        return Err("the range must start at 65536 or later and end before 4294967295".to_owned());
    }
    Ok((first, blocks))
}

/// A port of a loopback address of this machine, and the sandbox's port that its connections go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    /// Port 0 is any free one.
    pub(crate) local: SocketAddr,
    pub(crate) remote: u16,
}

impl std::fmt::Display for Forward {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(text, "{}:{}", self.local, self.remote)
    }
}

/// `LOCAL:REMOTE`, `:REMOTE` for a free local port, or one number for both; a loopback address may precede the local
/// port.
pub(crate) fn ports(text: &str) -> Result<Forward, String> {
    let (local, remote) = text.rsplit_once(':').unwrap_or((text, text));
    let (address, local) = match local.rsplit_once(':') {
        Some((address, local)) => (loopback(address)?, local),
        None => (IpAddr::V4(Ipv4Addr::LOCALHOST), local),
    };
    let local = if local.is_empty() { Ok(0) } else { local.parse::<u16>() };
    match (local, remote.parse::<u16>()) {
        (Ok(local), Ok(remote)) if remote > 0 => Ok(Forward { local: SocketAddr::new(address, local), remote }),
        _ => Err("write a pair of ports, for example 8000:8888".to_owned()),
    }
}

/// A loopback address; `localhost` is 127.0.0.1.
fn loopback(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    match text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) if address.to_canonical().is_loopback() => Ok(address),
        Ok(address) => Err(format!(
            "at {address} other machines could connect, and nobody would ask who they are; leave the address out, or write 127.0.0.1"
        )),
        Err(_) => Err("write a pair of ports, for example 8000:8888 or 127.0.0.1:8000:8888".to_owned()),
    }
}

/// The smallest memory limit that a sandbox can start with: its daemon and a shell.
const MIN_MEMORY: u64 = 8 << 20;

/// Parses a memory limit: a quantity that is large enough for a sandbox to start.
pub(crate) fn memory(text: &str) -> Result<String, String> {
    let quantity = quantity(text)?;
    match bytes(&quantity) {
        Some(bytes) if bytes < MIN_MEMORY => Err("less than a sandbox needs to start; give at least 8Mi".to_owned()),
        _ => Ok(quantity),
    }
}

/// The number of bytes in a quantity, rounded up.
fn bytes(quantity: &str) -> Option<u64> {
    let split = quantity.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(split);
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        _ => return None,
    };
    // A float is exact enough to compare with the minimum, and saturates in the conversion.
    Some((number.parse::<f64>().ok()? * factor).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn egress_rules_are_read() {
        assert_eq!(egress_rule("*.example.com:443"), Ok("*.example.com:443".to_owned()));
        assert!(egress_rule("https://a.b").unwrap_err().contains("without https://"));
        assert!(egress_rule("").is_err());
    }

    #[test]
    fn idle_times_are_bounded() {
        assert_eq!(idle_time("15m"), Ok(Duration::from_secs(900)));
        assert!(idle_time("500ms").unwrap_err().contains("between 1s") && idle_time("1000d").is_err());
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(lifetime("90d"), Ok(Lifetime(Some(Duration::from_secs(90 * 86_400)))));
        assert_eq!(lifetime("never"), Ok(Lifetime(None)));
        assert!(lifetime("always").unwrap_err().ends_with("or write never"));
        assert!(duration("5 weeks").unwrap_err().contains("unit"));
        assert!(duration("fast").is_err() && duration("").is_err());
    }

    #[test]
    fn quantities_follow_kubernetes() {
        assert_eq!(quantity("512Mi"), Ok("512Mi".to_owned()));
        assert_eq!(quantity("0.5"), Ok("0.5".to_owned()));
        assert!(quantity("512MB").unwrap_err().contains("512Mi"));
        assert!(quantity("-1").is_err() && quantity("").is_err());
        assert_eq!(quantity_limit("none"), Ok(DefaultLimit::Unlimited));
        assert_eq!(quantity_limit("1Gi"), Ok(DefaultLimit::Quantity("1Gi".to_owned())));
        assert!(quantity_limit("off").unwrap_err().ends_with("or none"));
        assert_eq!(count_limit("none"), Ok(DefaultLimit::Unlimited));
        assert_eq!(count_limit("33"), Ok(DefaultLimit::Quantity("33".to_owned())));
        assert!(count_limit("0").is_err() && count_limit("1k").is_err());
    }

    #[test]
    fn a_memory_limit_is_large_enough_to_start() {
        for enough in ["8Mi", "0.5Gi", "64M", "8388608", "2Ti"] {
            assert_eq!(memory(enough), Ok(enough.to_owned()));
        }
        for little in ["1Ki", "1", "7.9Mi", "8388607", "100m"] {
            assert!(memory(little).unwrap_err().contains("at least 8Mi"), "{little}");
        }
        assert!(memory("lots").is_err());
    }

    #[test]
    fn names_follow_kubernetes_rules() {
        assert!(object_name("my-sandbox.v1").is_ok());
        for printed in ["box", "sandbox/box", "sandboxclaim/box"] {
            assert_eq!(sandbox_name(printed).as_deref(), Ok("box"));
        }
        assert_eq!(snapshot_name("sandboxsnapshot/first").as_deref(), Ok("first"));
        assert!(sandbox_name("sandboxsnapshot/first").is_err() && snapshot_name("sandbox/box").is_err());
        for wrong in ["", "My", "a_b", "-a", "a-", "a..b", &"a".repeat(254)] {
            assert!(object_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_need_an_equals_sign() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(variable("NO_SUCH_VARIABLE_HERE").is_err() && variable("=b").is_err());
        assert_eq!(variable("PATH").ok().map(|pair| pair.1), std::env::var("PATH").ok());
    }

    #[test]
    fn networks_and_ranges_are_checked_before_anything_starts() {
        assert!(cidr("10.88.0.0/16").is_ok() && cidr("fd00::/64").is_ok());
        for wrong in ["10.88.0.0", "10.88.0.0/33", "ten/8", "/8", ""] {
            assert!(cidr(wrong).is_err(), "{wrong}");
        }
        assert_eq!(id_range("1000000:2"), Ok((1_000_000, 2)));
        for wrong in ["1000000", "0:10", "1000000:0", "4294900000:2", "a:b", ""] {
            assert!(id_range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pair("kata=/usr/bin/kata"), Ok(("kata".into(), "/usr/bin/kata".into())));
        assert!(pair("kata").is_err() && pair("=x").is_err() && pair("x=").is_err());
        assert!(folder("/usr").is_ok());
        assert!(folder("usr").is_err() && folder("/no/such/folder").is_err());
    }

    #[test]
    fn ports_come_in_pairs() {
        let read = |text: &str| ports(text).map(|ports| ports.to_string());
        assert_eq!(read("8000:80"), Ok("127.0.0.1:8000:80".to_owned()));
        assert_eq!(read("80"), Ok("127.0.0.1:80:80".to_owned()));
        assert_eq!(read(":80"), Ok("127.0.0.1:0:80".to_owned()));
        for address in ["127.0.0.1:8000:80", "localhost:8000:80"] {
            assert_eq!(read(address), Ok("127.0.0.1:8000:80".to_owned()));
        }
        for same in ["127.0.0.2:8000:80", "[::1]:8000:80", "127.0.0.1:0:80"] {
            assert_eq!(read(same), Ok(same.to_owned()));
        }
        assert_eq!(read("127.0.0.1::80"), Ok("127.0.0.1:0:80".to_owned()));
        for exposed in ["0.0.0.0:8000:80", "192.168.1.7:8000:80", "[::]:8000:80"] {
            assert!(ports(exposed).unwrap_err().contains("other machines could connect"), "{exposed}");
        }
        for wrong in ["", "a", "80:", "70000", "1:2:3", "80:0"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
