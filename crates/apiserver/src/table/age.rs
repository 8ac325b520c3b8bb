//! Ages in one or two units, in kubectl's format.

use jiff::Timestamp;
use serde_json::Value;

/// Time since `then`: in seconds up to two minutes, in coarser units beyond.
pub(super) fn since(then: Timestamp, now: Timestamp) -> String {
    format_age(now.duration_since(then).as_secs())
}

/// The age of a timestamp in an object, or `<unknown>`.
pub(super) fn of(timestamp: &Value, now: Timestamp) -> String {
    match timestamp.as_str().map(str::parse::<Timestamp>) {
        Some(Ok(then)) => since(then, now),
        _ => "<unknown>".into(),
    }
}

fn format_age(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, 'd', hours % 24, 'h'),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_grow_coarser() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (601, "10m"),
            (179 * 60, "179m"),
            (3 * HOUR, "3h"),
            (7 * HOUR + 60, "7h1m"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (7 * DAY + HOUR, "7d1h"),
            (8 * DAY + HOUR, "8d"),
            (729 * DAY, "729d"),
            (731 * DAY, "2y1d"),
            (9 * 365 * DAY, "9y"),
        ] {
            assert_eq!(format_age(seconds), expected, "{seconds}");
        }
    }
}
