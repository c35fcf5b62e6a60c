//! Connections to each service port (`--service-metrics`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use denizen_backend::FrontendConnections;
use denizen_model::{ServicePortName, family_of};
use denizen_plan::{FrontendAddress, FrontendKey, Plan};

/// Namespace, service, port, protocol and family.
type ConnectionLabels = [(&'static str, String); 5];

/// One counter for all frontends of a service port. The kernel's counters are removed with their
/// frontends, and begin at 0 when they are created again; these only rise.
#[derive(Debug, Clone, Default)]
pub struct ServiceMetrics {
    connections: Family<ConnectionLabels, Counter>,
    counted: Arc<Mutex<Counted>>,
}

/// The kernel's counts that are already in [`ServiceMetrics::connections`].
#[derive(Debug, Default)]
struct Counted {
    by_frontend: HashMap<FrontendConnections, u64>,
    series: BTreeSet<ConnectionLabels>,
}

impl ServiceMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Connections to each service port that began, with --service-metrics";
        registry.register("connections", help, metrics.connections.clone());
        metrics
    }

    /// Adds what the kernel has counted since the last call. Removes the series of services that
    /// are gone.
    pub fn set(&self, connections: &BTreeMap<FrontendConnections, u64>, plan: &Plan) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Counted { by_frontend, series } = &mut *counted;
        let mut current = BTreeSet::new();
        for (frontend, count) in connections {
            let before = by_frontend.insert(*frontend, *count).unwrap_or_default();
            let Some(port) = service_port(plan, frontend) else { continue };
            let labels = labels(port, frontend);
            // Less than before: the kernel's counter was created again.
            let more = count.checked_sub(before).unwrap_or(*count);
            self.connections.get_or_create(&labels).inc_by(more);
            current.insert(labels);
        }
        by_frontend.retain(|frontend, _| connections.contains_key(frontend));
        // A counter without connections for a day is gone from the kernel, but its series stays.
        current.extend(series.iter().filter(|labels| is_served(plan, labels)).cloned());
        for gone in series.difference(&current) {
            self.connections.remove(gone);
        }
        *series = current;
    }
}

/// The service port of a frontend: an address of a service, else a node port.
fn service_port<'a>(plan: &'a Plan, counted: &FrontendConnections) -> Option<&'a ServicePortName> {
    let services = plan.services()?;
    let (ip, protocol) = (counted.at.ip(), counted.protocol);
    let port = NonZeroU16::new(counted.at.port())?;
    let addresses = [FrontendAddress::Ip(ip), FrontendAddress::Node(family_of(ip))];
    let mut frontends = addresses
        .into_iter()
        .filter_map(|address| services.frontend(&FrontendKey { address, protocol, port }));
    frontends.next().map(|frontend| &frontend.service_port)
}

fn labels(port: &ServicePortName, counted: &FrontendConnections) -> ConnectionLabels {
    [
        ("namespace", port.service.namespace.to_string()),
        ("service", port.service.name.to_string()),
        ("port", port.port.to_string()),
        ("protocol", port.protocol.to_string()),
        ("ip_family", family_of(counted.at.ip()).to_string()),
    ]
}

fn is_served(plan: &Plan, labels: &ConnectionLabels) -> bool {
    let [(_, namespace), (_, name), ..] = labels;
    let service = denizen_model::ServiceName::new(namespace, name);
    plan.services().is_some_and(|services| !services.keys_of(&service).is_empty())
}

#[cfg(test)]
mod tests {
    use denizen_fixture::{service, service_port};
    use denizen_model::{Event, Listing, Protocol, Service};
    use denizen_plan::Planner;
    use denizen_plan::fixture::{CAPABLE, policy};

    use super::*;
    use crate::status::metrics::Metrics;

    /// `default/web`, also at a node port.
    fn web() -> (Planner, Service) {
        let mut planner = Planner::new(policy(), CAPABLE);
        let web = Service {
            ports: vec![service_port("http", Protocol::Tcp, 80, Some(30080))],
            ..service("web", &["10.96.0.10"])
        };
        planner.apply(Listing::SERVICES.map(Event::Listed).into());
        planner.apply(vec![Event::Service(web.name.clone(), Some(web.clone()))]);
        planner.update();
        (planner, web)
    }

    fn at(address: &str) -> FrontendConnections {
        FrontendConnections { at: address.parse().unwrap(), protocol: Protocol::Tcp }
    }

    /// The counter's line, if there is one.
    fn line(metrics: &Metrics) -> Option<String> {
        let text = metrics.encode();
        let of_it =
            text.lines().find(|line| line.starts_with("denizen_service_connections_total{"));
        of_it.map(str::to_owned)
    }

    #[test]
    fn frontends_of_a_port_are_summed_and_the_sum_never_falls() {
        let (mut planner, web) = web();
        let metrics = Metrics::default();
        let set = |counts: &[(&str, u64)]| {
            let counts = counts.iter().map(|(address, count)| (at(address), *count)).collect();
            metrics.services.set(&counts, planner.plan());
            line(&metrics).map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
        };
        assert_eq!(set(&[("203.0.113.9:80", 5)]), None, "nobody's");
        assert_eq!(set(&[("10.96.0.10:80", 3)]).as_deref(), Some("3"));
        let both = [("10.96.0.10:80", 4), ("192.168.0.1:30080", 2)];
        assert_eq!(set(&both).as_deref(), Some("6"));
        // The kernel's counter began anew.
        assert_eq!(set(&[("10.96.0.10:80", 1)]).as_deref(), Some("7"));
        assert_eq!(set(&[]).as_deref(), Some("7"), "the service is still there");
        planner.apply(vec![Event::Service(web.name, None)]);
        planner.update();
        metrics.services.set(&BTreeMap::new(), planner.plan());
        assert_eq!(line(&metrics), None);
    }
}
