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

/// The visible processes of this name, except those known to be in another network namespace: the
/// rules that those write are not this node's.
pub fn processes_called(name: &str) -> Vec<u32> {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let here = network("thread-self");
    let is_elsewhere = |pid: &u32| {
        here.is_some() && network(&pid.to_string()).is_some_and(|there| Some(there) != here)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            #[expect(
                clippy::disallowed_methods,
                reason = "a process's name, for a message to the operator"
            )]
            let own = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
            own.is_ok_and(|own| own.trim() == name) && !is_elsewhere(pid)
        })
        .collect();
    found.sort_unstable();
    found
}
