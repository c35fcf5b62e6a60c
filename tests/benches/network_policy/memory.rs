//! Memory, in megabytes.

use denizen_tests::bench::{self, Memory};

/// What this process holds.
pub fn resident() -> f64 {
    bench::megabytes(Memory::own().expect("this process has memory").resident)
}

/// The kernel's own memory: elements of sets are in slabs, or in pages that are counted as slabs;
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
