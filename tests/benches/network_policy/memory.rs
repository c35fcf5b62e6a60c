//! Memory, in megabytes.

/// What this process holds.
pub fn resident() -> f64 {
    megabytes("/proc/self/status", &["VmRSS:"])
}

/// What the kernel holds for itself: elements of sets are slabs, or pages that are counted as such;
/// large hash tables are mapped.
pub fn kernel() -> f64 {
    megabytes("/proc/meminfo", &["SUnreclaim:", "VmallocUsed:"])
}

fn megabytes(file: &str, names: &[&str]) -> f64 {
    let text = std::fs::read_to_string(file).expect("Linux has it");
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        names.contains(&words.next()?).then(|| words.next()?.parse::<f64>().ok())?
    });
    lines.sum::<f64>() * 1024.0 / 1e6
}
