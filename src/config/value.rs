//! Durations and sizes as they are written.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];
const SIZES: [(&str, u64); 2] = [("KiB", 1 << 10), ("MiB", 1 << 20)];

/// How a duration is written.
pub(super) const DURATION: &str = "an integer and one unit of ms, s, m, h, d, like \"90s\"";
/// How a size is written.
pub(super) const SIZE: &str = "an integer, or a text with the unit KiB or MiB, like \"64KiB\"";

/// A regular expression for what [`duration`] reads: any length, or any but none.
pub(super) fn duration_pattern(none: bool) -> String {
    let number = if none { "[0-9]+" } else { "0*[1-9][0-9]*" };
    pattern(number, &UNITS)
}

/// A regular expression for what [`size`] reads.
pub(super) fn size_pattern() -> String {
    pattern("[0-9]+", &SIZES)
}

fn pattern(number: &str, units: &[(&str, u64)]) -> String {
    let units: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
    format!("^{number}({})$", units.join("|"))
}

/// The text of a duration; `None` if it is none, or more milliseconds than can be counted.
pub(super) fn duration(text: &str) -> Option<Duration> {
    scaled(text, &UNITS).map(Duration::from_millis)
}

/// The text of a size in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    scaled(text, &SIZES)
}

/// A duration in the largest unit that is exact.
pub fn show_duration(length: Duration) -> String {
    let millis = length.as_millis();
    let (unit, scale) = UNITS
        .into_iter()
        .rev()
        .find(|(_, scale)| millis > 0 && millis.is_multiple_of(u128::from(*scale)))
        .unwrap_or(("ms", 1));
    format!("{}{unit}", millis / u128::from(scale))
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, word) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(unit, _)| *unit == word)?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_an_integer_and_one_unit() {
        for (text, millis) in [
            ("250ms", 250),
            ("1s", 1_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("50d", 4_320_000_000),
            ("007s", 7_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "1",
            "s",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            " 1s",
            "1s ",
            "1h30m",
            "1S",
            "1us",
            "1M",
            "1min",
            "1ｓ",
            "18446744073709551615d",
            "99999999999999999999s",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for text in ["250ms", "90s", "1m", "36h", "365d", "0ms"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_are_in_powers_of_two() {
        assert_eq!(size("64KiB"), Some(65_536));
        assert_eq!(size("2MiB"), Some(2_097_152));
        for text in [
            "64",
            "64kb",
            "64 KiB",
            "1.5MiB",
            "KiB",
            "1GiB",
            "",
            "99999999999999999MiB",
        ] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
