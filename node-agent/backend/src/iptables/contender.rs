//! Finds the other program that writes the service chains.

use std::fs;
use std::path::Path;

/// Names the program that keeps rewriting the service chains, if it can be found.
pub fn contender() -> String {
    let processes: Vec<String> =
        processes_called("kube-proxy").iter().map(ToString::to_string).collect();
    let who = match &*processes {
        [] => "somebody (kube-proxy writes chains of the same names)".to_owned(),
        [one] => format!("kube-proxy (process {one})"),
        more => format!("kube-proxy (processes {})", more.join(", ")),
    };
    format!(
        "{who} keeps rewriting the service chains. Stop it, then restart this agent: until then \
         nothing is repaired"
    )
}

/// The processes of this name, as far as this process sees them.
pub fn processes_called(name: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            #[expect(
                clippy::disallowed_methods,
                reason = "a process's name, for a message to the operator"
            )]
            let own = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
            own.is_ok_and(|own| own.trim() == name)
        })
        .collect();
    found.sort_unstable();
    found
}
