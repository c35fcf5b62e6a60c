//! Durations in Go's notation: `24h0m0s`, `1.5h`, `90s`, `0`.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a duration, which is never negative.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let signed: Result<SignedDuration, _> = text.parse();
    let bad = || format!("{text:?} is not a duration such as 1h30m or 90s");
    Duration::try_from(signed.map_err(|_| bad())?).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        let cases = [
            ("24h0m0s", 86_400_000),
            ("1h", 3_600_000),
            ("1m0s", 60_000),
            ("90s", 90_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("0s", 0),
            ("0", 0),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "soon", "5", "-1s", "1h-30m"] {
            assert!(duration(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }
}
