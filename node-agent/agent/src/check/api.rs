//! The Kubernetes API, or the manifests in its place.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use super::{Check, Finding, Subject, Topic};
use crate::config::{Objects, ObjectsError};
use denizen_source::kube::access::Access;
use denizen_source::kube::probe::{Failure, RolePermission, ServerProbe};
use denizen_source::manifests;
use denizen_text::describe;

/// The oldest release that serves `discovery.k8s.io/v1`.
const OLDEST: (u32, u32) = (1, 21);

/// Clocks that differ by no more than this count as equal: certificates and tokens are valid for
/// hours.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

pub(super) async fn checks(subject: &Subject) -> Vec<Check> {
    match &subject.objects {
        Ok(Objects::Manifests(folder)) => {
            let config = manifests::ManifestsConfig {
                folder: folder.clone(),
                node_name: subject.policy.settings.node_name.to_string(),
                features: subject.features,
            };
            in_folder(&config)
                .into_iter()
                .map(|finding| Check::new(Topic::Manifests, finding))
                .collect()
        }
        Ok(Objects::Api(access)) => of_server(subject, access).await,
        Err(ObjectsError::NoObjects) => vec![Check::new(
            Topic::Credentials,
            Finding::skipped(
                "there is nothing to ask it with: give --kubeconfig, or check in the agent's container",
            ),
        )],
        Err(error) => {
            let failed = Finding::failure(describe(error), "correct that flag, or that variable")
                .coded("api-flag-wrong", [("error", describe(error))]);
            vec![Check::new(Topic::Credentials, failed)]
        }
    }
}

fn in_folder(config: &manifests::ManifestsConfig) -> Vec<Finding> {
    match manifests::read(config) {
        Err(error) => {
            vec![
                Finding::failure(describe(&error), "name another folder with --manifests")
                    .coded("manifests-unreadable", [("error", describe(&error))]),
            ]
        }
        Ok((_, problems)) if problems.is_empty() => {
            vec![Finding::ok(format!("{} can be read", config.folder.display()))]
        }
        Ok((_, problems)) => {
            let advice = "correct it: it is not used";
            problems.into_iter().map(|problem| Finding::warning(problem, advice)).collect()
        }
    }
}

async fn of_server(subject: &Subject, access: &Access) -> Vec<Check> {
    let probe = match ServerProbe::open(access).await {
        Ok(probe) => probe,
        Err(error) => {
            let advice = "give --kubeconfig a file that can be read, or mount the service account";
            return vec![Check::new(
                Topic::Credentials,
                Finding::failure(describe(&error), advice)
                    .coded("credentials-unreadable", [("error", describe(&error))]),
            )];
        }
    };
    let began = Timestamp::now();
    let server = match probe.server().await {
        Ok(server) => server,
        Err(error) if error.is_unauthorized() => {
            return vec![Check::new(Topic::Credentials, not_accepted(&error))];
        }
        Err(error) => {
            let advice = "check the address (--master, DENIZEN_API_SERVER), its certificate, and \
                          the way there";
            let failed = Finding::failure(describe(&error), advice)
                .coded("server-unreachable", [("error", describe(&error))]);
            return vec![Check::new(Topic::Server, failed)];
        }
    };
    let mut checks = vec![Check::new(Topic::Server, release(server.release.as_deref()))];
    let clock = clock(server.date, began, Timestamp::now());
    match probe.missing(subject.features).await {
        Err(error) if error.is_unauthorized() => {
            checks.push(Check::new(Topic::Credentials, not_accepted(&error)));
        }
        Err(error) => checks.push(Check::new(Topic::Rights, unknown(&error))),
        Ok(missing) => {
            let accepted = Finding::ok("the API server accepts them");
            checks.push(Check::new(Topic::Credentials, accepted));
            let rights = match (subject.is_before_installation, access.kubeconfig()) {
                (true, Some(file)) if !missing.is_empty() => not_the_agents(file, &missing),
                _ => rights(&missing),
            };
            checks.push(Check::new(Topic::Rights, rights));
            checks.push(Check::new(Topic::Node, node(subject, &probe).await));
        }
    }
    checks.push(Check::new(Topic::Clock, clock));
    checks
}

fn not_accepted(error: &Failure) -> Finding {
    let reason = format!("the API server does not accept them: {}", describe(error));
    Finding::failure(reason, "renew the token or certificate that the kubeconfig or pod has")
        .coded("credentials-refused", [("error", describe(error))])
}

fn unknown(error: &Failure) -> Finding {
    Finding::warning(describe(error), "see whether the API server is well, and check again")
        .coded("api-unclear", [("error", describe(error))])
}

fn release(written: Option<&str>) -> Finding {
    let Some(written) = written else {
        return Finding::ok("the API server answers, and does not say its release");
    };
    let mut parts =
        written.trim_start_matches('v').split('.').map_while(|number| number.parse().ok());
    match parts.next().zip(parts.next()) {
        Some(release) if release < OLDEST => Finding::failure(
            format!(
                "the API server is Kubernetes {written}, which does not serve all that is read"
            ),
            format!("denizen needs Kubernetes {}.{} or later", OLDEST.0, OLDEST.1),
        )
        .coded("server-old", [("release", written.to_owned())]),
        Some(_) | None => Finding::ok(format!("the API server answers: Kubernetes {written}")),
    }
}

fn rights(missing: &[RolePermission]) -> Finding {
    const ADVICE: &str = "apply conf/kubernetes/rbac.yaml of this release";
    let (events, vital): (Vec<_>, Vec<_>) = missing.iter().partition(|right| right.is_for_events());
    match (vital.is_empty(), events.is_empty()) {
        (true, true) => Finding::ok("the role permits all that the agent asks for"),
        (true, false) => {
            Finding::warning(format!("the role does not permit: {}", listed(&events)), ADVICE)
                .coded("rights-for-events-missing", [("rights", listed(&events))])
        }
        (false, _) => Finding::failure(
            format!("the role does not permit: {}", listed(&[vital, events].concat())),
            ADVICE,
        )
        .coded("rights-missing", [("rights", listed(missing))]),
    }
}

/// Before the installation the credentials are another program's, for example the kubelet's, so
/// missing rights say nothing about the agent's.
fn not_the_agents(kubeconfig: &Path, missing: &[RolePermission]) -> Finding {
    let file = kubeconfig.display();
    Finding::skipped(format!(
        "{file} does not permit: {}. The installation brings a role of the agent's own",
        listed(missing)
    ))
}

fn listed<T: ToString>(rights: &[T]) -> String {
    rights.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whether the runtime passes host ports to the plugin.
fn with_host_ports(node: &str, runtime: &str) -> Finding {
    match runtime.starts_with("cri-o://") {
        false => Finding::ok(format!("this is Node {node}")),
        true => Finding::failure(
            format!("{runtime} passes no ports to CNI plugins: it serves host ports itself"),
            "leave --host-ports off on this node, for the agent and for install-cni",
        )
        .coded("runtime-serves-host-ports", [("runtime", runtime.to_owned())]),
    }
}

async fn node(subject: &Subject, probe: &ServerProbe) -> Finding {
    let name = &subject.policy.settings.node_name;
    match probe.runtime_of(name).await {
        Ok(Some(runtime)) => match subject.policy.host_ports {
            Some(_) => with_host_ports(name, &runtime),
            None => Finding::ok(format!("this is Node {name}")),
        },
        Ok(None) => Finding::warning(
            format!("the API has no Node {name}"),
            "give --node-name the name of this node's Node object, here and to the agent",
        )
        .coded("node-missing", [("node", name.to_string())]),
        Err(error) if subject.is_before_installation && error.is_forbidden() => {
            Finding::skipped(describe(&error))
        }
        Err(error) => unknown(&error),
    }
}

/// Compares the clocks. `date` is the server's time at some moment between `began` and `ended`,
/// which are this node's.
fn clock(date: Option<Timestamp>, began: Timestamp, ended: Timestamp) -> Finding {
    let Some(date) = date else {
        return Finding::skipped("the API server does not say its time");
    };
    let ahead = began.duration_since(date).max(date.duration_since(ended));
    if ahead <= SKEW {
        return Finding::ok("this node's clock and the API server's are together");
    }
    Finding::warning(
        format!("this node's clock and the API server's differ by {} s", ahead.as_secs()),
        "synchronise the clocks (NTP): tokens, certificates and latency metrics depend on them",
    )
    .coded("clocks-differ", [("seconds", ahead.as_secs().to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    #[test]
    fn old_releases_are_named() {
        let cases = [
            ("v1.20.15", Verdict::Failure),
            ("v1.21.0", Verdict::Ok),
            ("v1.33.2+k3s1", Verdict::Ok),
            ("v2.0.0", Verdict::Ok),
            ("devel", Verdict::Ok),
        ];
        for (written, expected) in cases {
            assert_eq!(release(Some(written)).verdict, expected, "{written}");
        }
    }

    #[test]
    fn clocks_are_compared_in_both_directions() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let cases = [
            (0, Verdict::Ok),
            (30, Verdict::Ok),
            (-30, Verdict::Ok),
            (33, Verdict::Warning),
            (-31, Verdict::Warning),
            (86_400, Verdict::Warning),
        ];
        for (date, expected) in cases {
            let found = clock(Some(at(date)), at(0), at(2));
            assert_eq!(found.verdict, expected, "{date}: {found:?}");
        }
        assert_eq!(clock(None, at(0), at(0)).verdict, Verdict::Skipped);
    }

    #[test]
    fn a_runtime_that_passes_no_ports_is_named() {
        let crio = with_host_ports("node-1", "cri-o://1.29.4");
        assert!(crio.reason.contains("cri-o://1.29.4 passes no ports"), "{crio:?}");
        for runtime in ["containerd://1.7.2", ""] {
            assert_eq!(with_host_ports("node-1", runtime).reason, "this is Node node-1");
        }
    }
}
