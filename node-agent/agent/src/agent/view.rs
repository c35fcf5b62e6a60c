//! The content of `status` and of the status page, from the loop's state.

use super::{Agent, now};
use denizen_backend::BackendName;
use denizen_backend::sysctl::vlan;
use denizen_backend::takeover::ipvs;
use denizen_netlink::NetlinkError;
use denizen_nft::Kernel;
use denizen_observe::drops::{DropCounts, count};
use denizen_observe::status::Status;
use denizen_observe::status::view::{View, ViewQuery};
use denizen_routing::DirectRouter;
use denizen_routing::bird::BirdController;
use denizen_source::attachments;
use denizen_text::describe;

impl Agent {
    /// The status, with the problems of all parts.
    pub(super) fn status(&mut self) -> Status {
        let reported = self.sources.problems.iter().flat_map(|p| p.borrow().clone());
        let found = self.found.borrow().clone();
        let settings = self.settings.problems().iter().cloned();
        let problems = reported.chain(settings).chain(found.errors);
        let left = self.predecessor.problem(now()).map(str::to_owned);
        let problems = problems.chain(self.flush.problem()).chain(left).chain(self.cut_off());
        let problems = problems.chain(self.is_passed_by().then(|| ipvs::PASSES_BY.to_owned()));
        let (routing, errors) = self.direct_router.as_ref().map(DirectRouter::report).unzip();
        let problems = problems.chain(errors.into_iter().flatten());
        let pods = self.engine.plan().recorded();
        let reported = self.announcer.as_ref().map(|announcer| announcer.report(pods));
        let (announcements, errors, unannounced) = match reported {
            Some((status, errors, warnings)) => (Some(status), errors, warnings),
            None => (None, Vec::new(), Vec::new()),
        };
        let problems = problems.chain(errors);
        let (bgp, errors, unheard) = match self.bird.as_ref().map(BirdController::report) {
            Some((status, errors, warnings)) => (Some(status), errors, warnings),
            None => (None, Vec::new(), Vec::new()),
        };
        let problems = problems.chain(errors);
        let rejected = routing.iter().flat_map(|routing| routing.rejected.clone()).collect();
        let settings = self.settings.warnings(self.engine.is_synced());
        let vlans = vlan::problems(self.settings.sysctls(), self.engine.plan().recorded());
        let without_hairpin = self.hairpin_ports.warnings(self.engine.plan().recorded());
        let unrecorded = self.sources.unrecorded.borrow().clone();
        let status = self.engine.status(problems.collect());
        let selected = self.sources.selected.borrow().clone();
        let lacking = selected.lacking(self.engine.plan().recorded());
        let unredirected = attachments::warning(&lacking).into_iter().collect();
        Status {
            backend: self.backend.to_string(),
            backend_why: self.backend_why.clone(),
            network_policy_why: self.enforcer.why.clone(),
            network_policy_engine: self.enforcer.engine.map(str::to_owned),
            unredirected_pods: lacking.len(),
            unrecorded_interfaces: unrecorded.interfaces.len(),
            routing,
            announcements,
            bgp,
            warnings: [
                found.warnings,
                settings,
                vlans,
                without_hairpin,
                status.warnings,
                unrecorded.warnings(),
                unredirected,
                rejected,
                unannounced,
                unheard,
            ]
            .concat(),
            ..status
        }
    }

    /// The bridges whose restricted pods are cut off, and why.
    fn cut_off(&self) -> impl Iterator<Item = String> {
        let is = |pods: &str, why: &str| {
            format!("restricted pods {pods} are cut off from its other ports: {why}")
        };
        let problems = self.bridge_filter.problems().iter();
        let problems = problems.map(move |(bridge, why)| is(&format!("on bridge {bridge}"), why));
        let in_vlans = self.engine.cut_off_in_vlans().into_iter().map(move |bridge| {
            let why = "IP rules do not see what a bridge hands on in a VLAN";
            is(&format!("in VLANs of bridge {bridge}"), why)
        });
        problems.chain(in_vlans)
    }

    /// Whether another program's ipvs serves services, and policies are enforced.
    fn is_passed_by(&self) -> bool {
        let is_alone = match self.backend {
            BackendName::None => self.engine.plan().firewall().is_some(),
            BackendName::Nftables | BackendName::Iptables | BackendName::Ipvs => false,
        };
        is_alone && ipvs::virtual_servers() > 0
    }

    /// What the rules have counted.
    fn drops(&self) -> DropCounts {
        let is_iptables = match self.backend {
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

    pub(super) fn view(&mut self, query: &ViewQuery) -> View {
        let status = self.status();
        View {
            node: self.engine.node_name().to_owned(),
            status,
            pods: self.engine.view_pods(query),
            services: self.engine.view_services(query),
            drops: self.drops(),
            syncs: self.publisher.history.rows(),
        }
    }
}
