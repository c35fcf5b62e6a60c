//! Memory, in megabytes.

use denizen_tests::bench::{self, Memory};

/// What this process holds.
pub fn resident() -> f64 {
    bench::megabytes(Memory::own().expect("this process has memory").resident)
}

/// What the kernel holds for itself: elements of sets are slabs, or pages that are counted as such;
/// large hash tables are mapped.
pub fn kernel() -> f64 {
    let names = ["SUnreclaim:", "VmallocUsed:"];
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux has it");
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        names.contains(&words.next()?).then(|| words.next()?.parse::<u64>().ok())?
    });
    bench::megabytes(lines.sum())
}
