//! Times in the state file's format.

use std::time::{SystemTime, UNIX_EPOCH};

const SECONDS_A_DAY: u64 = 86_400;

/// `time` in RFC 3339, in UTC, to the nanosecond: of two pods that claim the same address or host
/// port, the newer one gets it. A time before 1970 becomes 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, fraction) = (since.as_secs(), since.subsec_nanos());
    let (days, second) = (seconds / SECONDS_A_DAY, seconds % SECONDS_A_DAY);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{fraction:09}Z", second % 60)
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
///
/// Years count from March, so that the leap day is the last day of a year, and the first day of
/// each month is a linear function of its number.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_A_CENTURY: u64 = 36_524;
    const DAYS_AN_ERA: u64 = 4 * DAYS_A_CENTURY + 1;
    const FROM_YEAR_ZERO_TO_1970: u64 = 719_468;
    let days = days + FROM_YEAR_ZERO_TO_1970;
    let (era, day_of_era) = (days / DAYS_AN_ERA, days % DAYS_AN_ERA);
    let leap_days =
        day_of_era / 1_460 - day_of_era / DAYS_A_CENTURY + day_of_era / (DAYS_AN_ERA - 1);
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era + year_of_era / 100 - year_of_era / 4 - 365 * year_of_era;
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_176_000, "2026-11-20T12:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            let time = UNIX_EPOCH + Duration::new(seconds, 7);
            assert_eq!(rfc3339(time), text.replace('Z', ".000000007Z"));
        }
    }
}
