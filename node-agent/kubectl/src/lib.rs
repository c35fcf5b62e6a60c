//! `kubectl denizen`: what the agents of all nodes say, in one answer.
//!
//! It decides nothing about packets: the agents do. It finds them, asks them through the API server
//! with the operator's own rights, and puts together what they say. Who does not answer is a part of
//! every answer.
//!
//! | module | knows |
//! | --- | --- |
//! | [`cli`] | the command line, and exit codes |
//! | `completion` | what kubectl completes |
//! | `cluster` | kubeconfig, nodes, and which pod is a node's agent |
//! | `objects` | the few fields of Kubernetes objects that count |
//! | `session` | one conversation with one agent |
//! | `survey` | the same question to all, so many at once, until the deadline |
//! | `finding` | equal texts of many nodes, once |
//! | `output` | tables, JSON, and who did not answer |
//! | the others | a verb each |

pub mod cli;
mod cluster;
mod completion;
mod finding;
mod objects;
mod output;
mod session;
mod survey;
mod verb;

#[cfg(test)]
mod tests {
    /// The program is for an operator's desk too.
    #[test]
    fn no_crate_that_only_linux_has_is_needed() {
        let manifest = include_str!("../Cargo.toml");
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let (dependencies, _) = dependencies.split_once("\n[").unwrap();
        let names = dependencies.lines().filter_map(|line| line.split(['.', ' ']).next());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        assert!(names.contains(&"kube"), "{names:?}");
        for name in names {
            let is_ours = name.starts_with("denizen-");
            let is_portable = ["denizen-page", "denizen-text"].contains(&name);
            assert!(is_portable || !is_ours);
            assert!(!["nix", "libc", "rtnetlink"].contains(&name), "{name}");
        }
    }
}
