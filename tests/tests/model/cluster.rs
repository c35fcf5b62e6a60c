//! What kube-proxy's nftables mode would read from a world: services and endpoints, straight from
//! the JSON.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::place::{HERE, PROTOCOLS};
use super::world::World;

/// One port of a Service that kube-proxy would serve.
#[derive(Debug, Clone, Copy)]
pub struct Port<'a> {
    pub service: &'a Value,
    pub port: &'a Value,
}

/// What leads to a service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    ClusterIp,
    NodePort,
    LoadBalancerIp,
    ExternalIp,
}

/// An endpoint, as a slice has it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub ready: bool,
    pub last_resort: bool,
    pub terminating: bool,
    pub local: bool,
    pub zones: Vec<String>,
    pub nodes: Vec<String>,
}

/// An address in a range `address/length`.
pub fn within(range: &str, address: IpAddr) -> bool {
    let Some((network, length)) = range.trim().split_once('/') else {
        return false;
    };
    let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((network, wide), (address, width)) = (bits(network), bits(address));
    wide == width && (length == 0 || network >> (wide - length) == address >> (wide - length))
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The addresses in a list of texts.
pub fn addresses(list: &Value) -> Vec<IpAddr> {
    texts(list).iter().filter_map(|text| text.parse().ok()).collect()
}

/// Every service port that is served in this family.
pub fn ports(world: &World, v4: bool) -> Vec<Port<'_>> {
    let served = |service: &&Value| {
        let label = &service["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"];
        let cluster_ips = addresses(&service["spec"]["clusterIPs"]);
        label.is_null()
            && service["spec"]["type"] != "ExternalName"
            && cluster_ips.iter().any(|ip| ip.is_ipv4() == v4)
    };
    world.services.iter().filter(served).flat_map(ports_of).collect()
}

fn ports_of(service: &Value) -> Vec<Port<'_>> {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.map(|port| Port { service, port }).collect()
}

impl Port<'_> {
    pub fn number(&self, field: &str) -> Option<u16> {
        self.port[field].as_u64().and_then(|number| u16::try_from(number).ok())
    }

    pub fn protocol(&self) -> u8 {
        PROTOCOLS
            .iter()
            .find(|(name, _)| self.port["protocol"] == *name)
            .map_or(6, |(_, number)| *number)
    }

    pub fn is_local(&self, policy: &str) -> bool {
        self.service["spec"][policy] == "Local"
    }

    /// The addresses that lead here, each of its kind.
    pub fn addresses(&self) -> Vec<(FrontendKind, IpAddr)> {
        let spec = &self.service["spec"];
        let ingress = self.service["status"]["loadBalancer"]["ingress"].as_array();
        let vip = |entry: &&Value| entry["ipMode"].is_null() || entry["ipMode"] == "VIP";
        let of_balancer = ingress.into_iter().flatten().filter(vip);
        let of_balancer = of_balancer.filter_map(|entry| entry["ip"].as_str()?.parse().ok());
        let of =
            |kind, ips: Vec<IpAddr>| ips.into_iter().map(move |ip| (kind, ip)).collect::<Vec<_>>();
        [
            of(FrontendKind::ClusterIp, addresses(&spec["clusterIPs"])),
            of(FrontendKind::LoadBalancerIp, of_balancer.collect()),
            of(FrontendKind::ExternalIp, addresses(&spec["externalIPs"])),
        ]
        .concat()
    }

    /// The source ranges of this family; `None` where everybody may come.
    ///
    /// Unlike kube-proxy, what is not a range closes the families that have none, in place of
    /// meaning nothing.
    pub fn source_ranges(&self, v4: bool) -> Option<Vec<&str>> {
        let all = texts(&self.service["spec"]["loadBalancerSourceRanges"]);
        let (ranges, unreadable): (Vec<&str>, Vec<&str>) =
            all.into_iter().partition(|range| range.contains('/'));
        let ours: Vec<&str> =
            ranges.into_iter().filter(|range| range.contains(':') != v4).collect();
        let nothing_said = ours.is_empty() && unreadable.is_empty();
        let everybody = ours.iter().any(|range| range.trim().ends_with("/0"));
        (!nothing_said && !everybody).then_some(ours)
    }

    /// Of two that claim one address and port, the smaller one has it.
    pub fn rank(&self, kind: FrontendKind) -> impl Ord + use<> {
        let metadata = &self.service["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let created = text(&metadata["creationTimestamp"]);
        let name =
            (text(&metadata["namespace"]), text(&metadata["name"]), text(&self.port["name"]));
        (kind, created.is_empty(), created, name)
    }

    /// Its endpoints in a family: of an address in several slices, the one of the last slice by
    /// name that is not terminating.
    pub fn endpoints(&self, world: &World, v4: bool) -> BTreeMap<SocketAddr, Endpoint> {
        let own = |slice: &&Value| {
            let (metadata, service) = (&slice["metadata"], &self.service["metadata"]);
            let labels = &metadata["labels"];
            metadata["namespace"] == service["namespace"]
                && labels["kubernetes.io/service-name"] == service["name"]
                && labels["service.kubernetes.io/headless"].is_null()
                && labels["service.kubernetes.io/service-proxy-name"].is_null()
                && slice["addressType"] == if v4 { "IPv4" } else { "IPv6" }
        };
        let mut slices: Vec<&Value> = world.slices.iter().filter(own).collect();
        slices.sort_by_key(|slice| slice["metadata"]["name"].as_str());
        let mut found: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
        for slice in slices {
            let same = |port: &&Value| {
                ["name", "protocol"].iter().all(|field| port[*field] == self.port[*field])
            };
            let ports = slice["ports"].as_array().into_iter().flatten().filter(same);
            for number in ports.filter_map(|port| u16::try_from(port["port"].as_u64()?).ok()) {
                for raw in slice["endpoints"].as_array().into_iter().flatten() {
                    let Some(address) = addresses(&raw["addresses"]).first().copied() else {
                        continue;
                    };
                    let endpoint = Endpoint::of(raw);
                    let at = SocketAddr::new(address, number);
                    match found.get(&at) {
                        Some(earlier) if endpoint.terminating && !earlier.terminating => {}
                        _ => drop(found.insert(at, endpoint)),
                    }
                }
            }
        }
        found
    }
}

impl Endpoint {
    fn of(raw: &Value) -> Self {
        let condition = |name: &str| raw["conditions"][name].as_bool();
        let hints = |name: &str| {
            let hints = raw["hints"][name].as_array().into_iter().flatten();
            hints.filter_map(|hint| hint["name"].as_str()).map(str::to_owned).collect()
        };
        let terminating = condition("terminating").unwrap_or(false);
        Self {
            ready: condition("ready").unwrap_or(true),
            last_resort: condition("serving").unwrap_or(true) && terminating,
            terminating,
            local: raw["nodeName"] == HERE,
            zones: hints("forZones"),
            nodes: hints("forNodes"),
        }
    }
}
