//! The table as it is written. Nothing here interprets it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::packets::probe::Protocol;

/// The backend that the rows are run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nftables.
    Nftables,
    /// iptables in the tables of ip_tables.
    IptablesLegacy,
    /// iptables in the tables of nf_tables.
    IptablesNft,
    /// IPVS, with the rules of nftables.
    Ipvs,
}

impl Backend {
    /// All that the kernel under the tests has. The guest's kernel also has [`Self::Ipvs`].
    pub const ALL: [Self; 3] = [Self::Nftables, Self::IptablesLegacy, Self::IptablesNft];

    /// The backend's name in the table.
    fn row(self) -> &'static str {
        match self {
            // What IPVS carries must look as if nftables carried it.
            Self::Nftables | Self::Ipvs => "nftables",
            Self::IptablesLegacy | Self::IptablesNft => "iptables",
        }
    }

    /// The agent's flags for this backend.
    pub fn flags(self) -> Vec<String> {
        let flags: &[&str] = match self {
            Self::Nftables => &["--backend=nftables"],
            Self::IptablesLegacy => &["--backend=iptables", "--iptables-variant=legacy"],
            Self::IptablesNft => &["--backend=iptables", "--iptables-variant=nft"],
            Self::Ipvs => &["--backend=ipvs"],
        };
        flags.iter().map(|&flag| flag.to_owned()).collect()
    }
}

/// A cluster as one node sees it, and packets in it.
#[derive(Debug, Clone, Deserialize)]
pub struct FlowCase {
    /// Unique in the table.
    pub name: String,
    /// What the case is about.
    pub description: String,
    /// The backends that the case holds for.
    pub backends: Vec<String>,
    /// Services, as the API serves them.
    pub services: Vec<Value>,
    /// EndpointSlices, as the API serves them.
    pub endpointslices: Vec<Value>,
    /// The node.
    pub node: NodeRow,
    /// How the agent is configured.
    pub config: Config,
    /// The packets.
    pub flows: Vec<FlowRow>,
}

/// The node of a case.
#[derive(Debug, Clone, Deserialize)]
pub struct NodeRow {
    /// Its name in the API.
    pub name: String,
    /// Its addresses, the primary ones first.
    pub ips: Vec<IpAddr>,
    /// Its zone; empty for none.
    pub zone: String,
}

/// Configuration of a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Which pods are recorded.
    pub detect_local: DetectLocal,
    /// Whether everything to a cluster IP is masqueraded.
    pub masquerade_all: bool,
    /// Whether node ports answer on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Where node ports answer; empty for the default.
    pub node_port_addresses: Vec<String>,
    /// The ranges that cluster IPs come from.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// The feature gate for hints that name nodes; on by default.
    pub prefer_same_node: Option<bool>,
}

/// Local detection of a case.
#[derive(Debug, Clone, Deserialize)]
pub struct DetectLocal {
    /// Pods of the node.
    #[serde(default)]
    pub pods: Vec<PodRow>,
}

/// A pod of the node.
#[derive(Debug, Clone, Deserialize)]
pub struct PodRow {
    /// The pod's name in the table.
    pub iface: String,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
}

/// A packet that opens a connection.
#[derive(Debug, Clone, Deserialize)]
pub struct FlowRow {
    /// What the packet shows.
    pub name: String,
    /// Its source.
    pub from: IpAddr,
    /// Where it starts.
    pub from_kind: FlowSource,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its destination.
    pub dest_ip: IpAddr,
    /// Its destination port.
    pub dest_port: u16,
    /// What becomes of it.
    pub expect: FlowExpectation,
    /// The backends that the packet is for, if they differ from the case's.
    pub backends: Option<Vec<String>>,
}

/// Where a packet starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowSource {
    /// A pod of the node.
    LocalPod,
    /// The node itself.
    Node,
    /// A host outside the cluster.
    External,
    /// A pod of another node.
    RemotePod,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Deserialize)]
pub struct FlowExpectation {
    /// Who may answer, or a verdict.
    pub endpoints: FlowVerdict,
    /// Whether the endpoint sees the node as the source.
    pub masq: bool,
    /// Whether one client always gets the same endpoint.
    pub sticky: Option<Value>,
}

/// Who answers a packet.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum FlowVerdict {
    /// Each of these answers some of the time.
    Forward(Vec<SocketAddr>),
    /// No endpoint answers, and how that shows.
    Nobody(Nobody),
}

/// What happens instead of an endpoint's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Nobody {
    /// The client is refused.
    Reject,
    /// The client gets no answer.
    Drop,
    /// The packet goes where it was sent to.
    None,
    /// Explicitly let through, which only iptables has.
    Accept,
}

/// An endpoint, cut down to where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// All its addresses, although a proxy uses only the first.
    pub addresses: Vec<IpAddr>,
    /// The node that it is on, if given.
    pub node: Option<String>,
    /// The ports of its slice.
    pub ports: Vec<(Protocol, u16)>,
}

impl FlowCase {
    /// The case's configuration on the agent's command line.
    pub fn agent_options(&self) -> Vec<String> {
        let config = &self.config;
        let mut options =
            vec![format!("--iptables-localhost-nodeports={}", config.localhost_node_ports)];
        if !config.node_port_addresses.is_empty() {
            options.push(format!("--nodeport-addresses={}", config.node_port_addresses.join(",")));
        }
        if config.masquerade_all {
            options.push("--masquerade-all".to_owned());
        }
        if config.prefer_same_node == Some(false) {
            options.push("--feature-gates=PreferSameTrafficDistribution=false".to_owned());
        }
        options
    }

    /// All endpoints of all slices, usable or not.
    pub fn endpoints(&self) -> Result<Vec<Listening>> {
        self.endpointslices
            .iter()
            .map(endpoints_of)
            .collect::<Result<Vec<_>>>()
            .map(|nested| nested.concat())
    }
}

/// The cases that apply to `backend`, with the packets that apply to it.
pub fn cases(backend: Backend) -> Result<Vec<FlowCase>> {
    let mut all: Vec<FlowCase> =
        serde_json::from_str(include_str!("../../../flows.json")).context("flows.json")?;
    let own: Vec<FlowCase> =
        serde_json::from_str(include_str!("../../../own-flows.json")).context("own-flows.json")?;
    all.extend(own);
    let ours = |them: &[String]| them.iter().any(|row| row == backend.row());
    all.retain(|case| ours(&case.backends));
    for case in &mut all {
        case.flows.retain(|flow| flow.backends.as_deref().is_none_or(ours));
    }
    Ok(all)
}

fn endpoints_of(slice: &Value) -> Result<Vec<Listening>> {
    #[derive(Deserialize)]
    struct Slice {
        #[serde(default)]
        ports: Vec<Port>,
        endpoints: Vec<FlowEndpoint>,
    }
    #[derive(Deserialize)]
    struct Port {
        port: u16,
        protocol: Protocol,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct FlowEndpoint {
        addresses: Vec<String>,
        node_name: Option<String>,
    }
    let slice = Slice::deserialize(slice).context("an EndpointSlice of the table")?;
    let ports: Vec<_> = slice.ports.iter().map(|port| (port.protocol, port.port)).collect();
    let listening = |endpoint: FlowEndpoint| {
        let addresses =
            endpoint.addresses.iter().map(|text| lenient(text)).collect::<Result<Vec<_>>>()?;
        Ok(Listening { addresses, node: endpoint.node_name, ports: ports.clone() })
    };
    slice.endpoints.into_iter().map(listening).collect()
}

/// An address as sloppy users write it: the API server lets leading zeros pass and means decimals.
fn lenient(text: &str) -> Result<IpAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let numbers = text.split('.').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>()?;
    let octets: [u8; 4] =
        numbers.try_into().ok().with_context(|| format!("{text} is no address"))?;
    Ok(Ipv4Addr::from(octets).into())
}
