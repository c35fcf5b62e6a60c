//! `kubectl denizen`: what the agents of all nodes say, in one answer.
//!
//! This program decides nothing about packets: the agents do. It finds the agents, asks them
//! through the API server with the operator's own rights, and puts together what they say. Every
//! answer names the nodes that did not answer. What no agent knows, such as policies that are not
//! applied yet, is decided by the agents' own code in this program. Only `test` makes objects, in a
//! namespace of its own.
//!
//! | module | knows |
//! | --- | --- |
//! | [`cli`] | the command line, and exit codes |
//! | `completion` | what kubectl completes |
//! | `cluster` | kubeconfig, nodes, and which pod is a node's agent |
//! | `objects` | the few fields of Kubernetes objects that count |
//! | `session` | one conversation with one agent |
//! | `no_answer` | why a node did not answer |
//! | `survey` | asks all nodes the same question, a limited number at once, until the deadline |
//! | `finding` | merges equal texts of many nodes |
//! | `output` | tables, JSON, and who did not answer |
//! | `watch` | asks the same question again and again |
//! | `workload` | what pods belong to |
//! | the others | a verb each |

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic if the reader has gone or the disk is full: `denizen_text` has others"
)]

pub mod cli;
mod cluster;
mod completion;
mod finding;
mod no_answer;
mod objects;
mod output;
mod session;
mod survey;
mod verb;
mod watch;
mod workload;

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "manifests are files")]

    use std::collections::BTreeSet;
    use std::path::Path;

    /// The names of a manifest's dependencies, without those that a feature adds.
    fn dependencies(folder: &Path) -> Vec<String> {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]").unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        let lines = dependencies.lines().filter(|line| !line.contains("optional = true"));
        let names = lines.filter_map(|line| line.split(['.', ' ']).next());
        names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
    }

    /// The program is for an operator's desk too: it needs no crate that only Linux has, and none
    /// of ours that does.
    #[test]
    fn no_crate_that_only_linux_has_is_needed() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder_of = |name: &str| {
            let folders = ["node-agent", "shared"].map(|part| workspace.join(part).join(name));
            folders.into_iter().find(|folder| folder.exists()).unwrap()
        };
        let (mut all, mut waiting) = (BTreeSet::new(), vec!["denizen-kubectl".to_owned()]);
        while let Some(name) = waiting.pop() {
            for needed in dependencies(&folder_of(name.trim_start_matches("denizen-"))) {
                if all.insert(needed.clone()) && needed.starts_with("denizen-") {
                    waiting.push(needed);
                }
            }
        }
        for name in ["kube", "denizen-plan", "denizen-state", "serde-saphyr"] {
            assert!(all.contains(name), "{name} is not looked at: {all:?}");
        }
        for name in ["nix", "libc", "rtnetlink", "denizen-netlink", "denizen-source"] {
            assert!(!all.contains(name), "{name} is needed");
        }
        let manifest = std::fs::read_to_string(workspace.join("Cargo.toml")).unwrap();
        let state = manifest.lines().find(|line| line.starts_with("denizen-state")).unwrap();
        assert!(state.contains("default-features = false"), "{state}");
    }
}
