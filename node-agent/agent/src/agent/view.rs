//! The content of `status` and of the status page, from the loop's state.

use super::sources::ApiCounts;
use super::{Agent, now};
use denizen_backend::BackendName;
use denizen_backend::sysctl::vlan;
use denizen_backend::takeover::ipvs;
use denizen_netlink::NetlinkError;
use denizen_nft::Kernel;
use denizen_observe::drops::{DropCounts, count};
use denizen_observe::status::Status;
use denizen_observe::status::tables::{pod_rows, service_rows};
use denizen_observe::status::view::{View, ViewQuery};
use denizen_routing::ProgrammedPlan as _;
use denizen_source::attachments;
use denizen_text::describe;

/// The status, with the problems of all parts.
pub(super) fn status(agent: &mut Agent) -> Status {
    let reported = agent.sources.problems.iter().flat_map(|problems| problems.borrow().clone());
    let found = agent.forward_findings.borrow().clone();
    let settings = agent.settings.problems().iter().cloned();
    let problems = reported.chain(settings).chain(found.errors);
    let left = agent.predecessor.problem(now()).map(str::to_owned);
    let flush = agent.flush.report();
    let problems = problems.chain(flush.problem).chain(left).chain(cut_off(agent));
    let problems =
        problems.chain(ipvs_bypasses_policies(agent).then(|| ipvs::BYPASSES_POLICIES.to_owned()));
    let routing = agent.routing.report(agent.engine.plan().recorded());
    let problems = problems.chain(routing.errors);
    let settings = agent.settings.warnings(agent.engine.is_synced());
    let vlans = vlan::problems(agent.settings.sysctls(), agent.engine.plan().recorded());
    let without_hairpin = agent.bridges.hairpin_warnings(agent.engine.plan().recorded());
    let unrecorded = agent.sources.unrecorded.borrow().clone();
    let mut status = agent.engine.status(problems.collect());
    if let Some(network_policy) = &mut status.network_policy {
        let chooser = agent.sources.pod_scope.as_ref();
        network_policy.watched_pods =
            chooser.and_then(|chooser| chooser.report(agent.engine.planner()));
    }
    let last_repair = agent.publisher.history.last_repair;
    let selected = agent.sources.selected.borrow().clone();
    let lacking = selected.lacking(agent.engine.plan().recorded());
    let unredirected = attachments::warning(&lacking).into_iter().collect();
    Status {
        backend: agent.backend.to_string(),
        backend_why: agent.backend_why.clone(),
        network_policy_why: agent.enforcer.why.clone(),
        network_policy_engine: agent.enforcer.engine.map(str::to_owned),
        unredirected_pods: lacking.len(),
        api: agent.sources.api.iter().map(ApiCounts::to_status).collect(),
        unrecorded_interfaces: unrecorded.interfaces.len(),
        last_sync: flush.last_sync,
        flushed: flush.flushed,
        flushing: flush.is_flushing || status.flushing,
        drift_repaired: agent.publisher.history.drift_repaired,
        last_repair_milliseconds: last_repair.map(|took| took.as_secs_f64() * 1e3),
        routing: routing.routes,
        announcements: routing.announcements,
        bgp: routing.bgp,
        warnings: [
            found.warnings,
            settings,
            vlans,
            without_hairpin,
            Vec::from_iter(without_effect(agent)),
            status.warnings,
            unrecorded.warnings(),
            unredirected,
            routing.warnings,
        ]
        .concat(),
        ..status
    }
}

/// The bridges whose restricted pods are cut off, and why.
fn cut_off(agent: &Agent) -> impl Iterator<Item = String> {
    let is = |pods: &str, why: &str| {
        format!("restricted pods {pods} are cut off from its other ports: {why}")
    };
    let problems = agent.bridges.unfiltered_bridges().iter();
    let problems = problems.map(move |(bridge, why)| is(&format!("on bridge {bridge}"), why));
    let in_vlans = agent.engine.plan().bridges_cut_off_in_vlans().into_iter().map(move |bridge| {
        let why = "IP rules do not see what a bridge hands on in a VLAN";
        is(&format!("in VLANs of bridge {bridge}"), why)
    });
    problems.chain(in_vlans)
}

/// A warning if a flag asks for something that this backend cannot do. It is not an error: other
/// nodes may have another backend.
pub(super) fn without_effect(agent: &Agent) -> Option<String> {
    let asks = agent.engine.plan().node().node_side.count_connections;
    let backend = agent.backend;
    (asks && !backend.counts_connections()).then(|| {
        format!(
            "--service-metrics has no effect: the backend {backend} does not count connections to \
             services"
        )
    })
}

/// Whether this agent enforces policies, while another program serves services through IPVS.
fn ipvs_bypasses_policies(agent: &Agent) -> bool {
    let is_alone = match agent.backend {
        BackendName::None => agent.engine.plan().firewall().is_some(),
        BackendName::Nftables | BackendName::Iptables | BackendName::Ipvs => false,
    };
    is_alone && ipvs::virtual_servers() > 0
}

fn drops(backend: BackendName) -> DropCounts {
    let is_iptables = match backend {
        BackendName::Iptables => true,
        BackendName::Nftables | BackendName::Ipvs | BackendName::None => false,
    };
    let counted = Kernel::open().and_then(|mut kernel| count(&mut kernel, is_iptables));
    let failed = |error: NetlinkError| DropCounts {
        not_counted: Some(format!("the counters cannot be read: {}", describe(&error))),
        ..DropCounts::default()
    };
    counted.unwrap_or_else(failed)
}

pub(super) fn view(agent: &mut Agent, query: &ViewQuery) -> View {
    let status = status(agent);
    View {
        node: agent.engine.plan().policy().settings.node_name.to_string(),
        status,
        pods: pod_rows(agent.engine.planner(), query),
        services: service_rows(agent.engine.planner(), query),
        drops: drops(agent.backend),
        syncs: agent.publisher.history.rows(),
    }
}
