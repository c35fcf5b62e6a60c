//! Kernel settings, and the room of connection tracking. Only reads.

use super::{Check, Finding, Subject, Topic};
use denizen_backend::sysctl::file::value;
use denizen_backend::sysctl::{Setting, bridge, bridge_filter, cpus, vlan};
use denizen_model::{Family, LocalPod, family_of};

/// Warn when conntrack is this full, in percent.
const CLOSE: u64 = 75;
/// Fail when conntrack is this full, in percent: when it is full, the kernel drops new connections.
const FULL: u64 = 95;
/// Warn if a full conntrack table would have more entries per bucket than this, on average.
/// kube-proxy sets 4.
const LONGEST_BUCKET: u64 = 8;

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let mut checks = vec![
        Check::new(Topic::Forwarding, forwarding(subject)),
        Check::new(Topic::ConntrackRoom, conntrack_room(subject)),
        Check::new(Topic::ConntrackSettings, conntrack_settings(subject)),
        Check::new(Topic::BridgeFilter, bridges(subject)),
    ];
    checks.extend(vlans(subject).into_iter().map(|finding| Check::new(Topic::Vlans, finding)));
    checks
}

/// `net/ipv4/ip_forward` as sysctl(8) writes it.
fn dotted(path: &str) -> String {
    path.replace('/', ".")
}

fn forwarding(subject: &Subject) -> Finding {
    const V4: &str = "net/ipv4/ip_forward";
    const V6: &str = "net/ipv6/conf/all/forwarding";
    let has_v6 = subject.pods().iter().flat_map(|pod| &pod.ips).any(|ip| ip.is_ipv6());
    let wanted = [Some(V4), has_v6.then_some(V6)].into_iter().flatten();
    let off: Vec<String> = wanted
        .filter(|path| value(&subject.sysctls, path).is_ok_and(|value| value == 0))
        .map(dotted)
        .collect();
    if off.is_empty() {
        return Finding::ok("the node forwards packets");
    }
    Finding::failure(
        format!("the node forwards no packets of its pods: {} is 0", off.join(" and ")),
        format!("sysctl -w {}=1, and name it in /etc/sysctl.d", off.join("=1 ")),
    )
    .coded("forwarding-off", [("settings", off.join(", "))])
}

fn conntrack_room(subject: &Subject) -> Finding {
    let read = |name| value(&subject.sysctls, &format!("net/netfilter/nf_conntrack_{name}"));
    let (count, max, buckets) = match (read("count"), read("max"), read("buckets")) {
        (Ok(count), Ok(max), Ok(buckets)) => (count, max, buckets),
        (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => {
            return Finding::warning(
                format!("the room of connection tracking is not known: {error}"),
                "load the kernel module nf_conntrack",
            )
            .coded("conntrack-unknown", [("error", error.to_string())]);
        }
    };
    let used = format!("{count} of {max} connections");
    let room = [("count", count.to_string()), ("max", max.to_string())];
    let more = "find out who opens so many (`conntrack -L`), or set net.netfilter.nf_conntrack_max \
                higher";
    let hundredths = (count * 100).checked_div(max).unwrap_or_default();
    if hundredths >= FULL {
        let reason = format!("connection tracking is full, so new connections are dropped: {used}");
        return Finding::failure(reason, more).coded("conntrack-full", room);
    }
    if hundredths >= CLOSE {
        return Finding::warning(format!("connection tracking is nearly full: {used}"), more)
            .coded("conntrack-nearly-full", room);
    }
    if max > buckets.saturating_mul(LONGEST_BUCKET) {
        return Finding::warning(
            format!(
                "lookups are slow when many connections are open: {max} fit in {buckets} buckets"
            ),
            format!("set net.netfilter.nf_conntrack_buckets to {} or more", max / 4),
        )
        .coded(
            "conntrack-buckets-few",
            [("max", max.to_string()), ("buckets", buckets.to_string())],
        );
    }
    Finding::ok(format!("{used} are tracked"))
}

/// If the agent runs, what differs from its settings is what it was not permitted to set.
fn conntrack_settings(subject: &Subject) -> Finding {
    let wanted = subject.conntrack.settings(cpus());
    let others: Vec<String> =
        wanted.iter().filter_map(|setting| differs(subject, setting)).collect();
    if others.is_empty() {
        return Finding::ok("they are as the agent sets them");
    }
    if !subject.is_agent_running() {
        return Finding::ok(format!("the agent will set them: {}", others.join(", ")));
    }
    Finding::warning(
        format!("the agent was not permitted to set them: {}", others.join(", ")),
        "set them on the host (/etc/sysctl.d), or use --sysctl-dir as the DaemonSet does",
    )
    .coded("conntrack-settings-differ", [("settings", others.join(", "))])
}

/// What is wrong with a setting.
fn differs(subject: &Subject, setting: &Setting) -> Option<String> {
    let now = value(&subject.sysctls, &setting.path).ok()?;
    let wanted = setting.wanted.number();
    let path = dotted(&setting.path);
    (!setting.wanted.is_met_by(now)).then(|| format!("{path} is {now}, not {wanted}"))
}

fn bridges(subject: &Subject) -> Finding {
    if !bridge::is_module_loaded(&subject.sysctls) {
        return Finding::skipped("the kernel module br_netfilter is not loaded");
    }
    let is_bridged = |family: Family| {
        let ports = subject.pods().iter().filter(|pod| pod.port.is_some());
        ports.flat_map(|pod| &pod.ips).any(|ip| family_of(*ip) == family)
    };
    let families: Vec<Family> =
        Family::BOTH.into_iter().filter(|family| is_bridged(*family)).collect();
    if families.is_empty() {
        return Finding::skipped("no recorded pod is the port of a bridge");
    }
    let settings = families.into_iter().map(bridge_filter);
    let off: Vec<String> = settings.filter_map(|setting| differs(subject, &setting)).collect();
    match (off.is_empty(), subject.is_agent_running()) {
        (true, _) => Finding::ok("frames between ports of a bridge pass the rules"),
        (false, false) => Finding::ok(format!("the agent will set {}", off.join(", "))),
        (false, true) => Finding::failure(
            format!(
                "a connection to a service hangs if the endpoint is on the client's own bridge: {}",
                off.join(", ")
            ),
            "set it on the host (/etc/sysctl.d), or use --sysctl-dir as the DaemonSet does",
        )
        .coded("bridge-filter-off", [("settings", off.join(", "))]),
    }
}

fn vlans(subject: &Subject) -> Vec<Finding> {
    const ADVICE: &str = "set it to 0, unless pods of this node outside VLANs need it";
    let problems = vlan::problems(&subject.sysctls, subject.pods());
    if !problems.is_empty() {
        return problems.into_iter().map(|problem| Finding::warning(problem, ADVICE)).collect();
    }
    vec![match subject.pods().iter().any(LocalPod::is_in_vlan) {
        true => Finding::ok("the rules see packets of pods in VLANs at the VLAN's interface"),
        false => Finding::skipped("no recorded pod is in a VLAN of a bridge"),
    }]
}
