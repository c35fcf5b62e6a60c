//! Which packets come from local pods.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::detector::Detector;
use denizen_model::{Family, LocalPod, family_of};

/// How packets of local pods are detected: one matching test is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detection {
    /// As configured.
    pub detector: Detector,
    tests: Vec<LocalTest>,
}

/// A test that packets of local pods pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalTest {
    /// Input interface and source address are those of a recorded pod.
    Pod,
    /// As [`Self::Pod`], and the pod is bridged, and the packet came in through its port of the
    /// bridge.
    PodAtItsPort,
    /// Input interface and source address are those of a recorded pod that is not bridged.
    PodWithoutPort,
    /// It came in through any port of a bridge.
    AnyPort,
    /// It came in through this bridge.
    Bridge(Arc<str>),
    /// The input interface's name begins with this.
    Prefix(Arc<str>),
    /// The source address is in this range.
    Source(IpNetwork),
}

/// The interface through which a packet came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The input interface that the IP stack sees. For a packet from a bridge's port this is the
    /// bridge, or a VLAN's device on it.
    pub interface: &'a str,
    /// The port of the bridge, if it came in through one.
    pub port: BridgePort<'a>,
}

/// The port of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgePort<'a> {
    /// The interface is not a bridge.
    None,
    /// It is a bridge, but the port is not known.
    Unnamed,
    Named(&'a str),
}

/// Why a packet counts as local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local<'a> {
    /// It is from this recorded pod.
    Pod(&'a LocalPod),
    /// It came in through a port of a bridge.
    Port,
    /// It came in through this bridge.
    Bridge(&'a str),
    /// Its input interface's name begins with this.
    Prefix(&'a str),
    /// Its source lies in this range.
    Range(IpNetwork),
}

impl Detection {
    /// The tests for `detector` on a node with these pod CIDRs.
    pub fn new(detector: &Detector, pod_cidrs: &[IpNetwork]) -> Self {
        let ranges = |ranges: &[IpNetwork]| ranges.iter().copied().map(LocalTest::Source).collect();
        let tests = match detector {
            Detector::PodState => vec![LocalTest::Pod],
            Detector::PodPort => vec![LocalTest::PodAtItsPort, LocalTest::PodWithoutPort],
            Detector::BridgePort => vec![LocalTest::AnyPort],
            Detector::Bridge(names) => names.iter().cloned().map(LocalTest::Bridge).collect(),
            Detector::InterfacePrefix(prefixes) => {
                prefixes.iter().cloned().map(LocalTest::Prefix).collect()
            }
            Detector::NodeCidr(Some(named)) => ranges(named),
            Detector::NodeCidr(None) => ranges(pod_cidrs),
        };
        Self { detector: detector.clone(), tests }
    }

    /// The tests of packets of this family, in order.
    pub fn tests(&self, family: Family) -> impl Iterator<Item = &LocalTest> {
        self.tests.iter().filter(move |test| match test {
            LocalTest::Source(range) => family_of(range.ip()) == family,
            LocalTest::Pod
            | LocalTest::PodAtItsPort
            | LocalTest::PodWithoutPort
            | LocalTest::AnyPort
            | LocalTest::Bridge(_)
            | LocalTest::Prefix(_) => true,
        })
    }

    /// The tests of the port of a bridge, for both families.
    pub fn ports(&self) -> impl Iterator<Item = &LocalTest> {
        self.tests.iter().filter(|test| test.asks_port())
    }

    /// Whether a bridged pod's packet must have come in through the pod's port.
    pub fn proves_ports(&self) -> bool {
        self.tests.contains(&LocalTest::PodAtItsPort)
    }

    /// Whether, and why, a packet with this source from this interface is local. `arrival` is
    /// `None` for packets that the node itself sends.
    pub fn local<'a>(
        &'a self,
        pods: &'a [LocalPod],
        source: IpAddr,
        arrival: Option<Arrival<'_>>,
    ) -> Option<Local<'a>> {
        self.tests.iter().find_map(|test| test.local(pods, source, arrival))
    }
}

impl LocalTest {
    /// Whether it tests the port of a bridge.
    pub fn asks_port(&self) -> bool {
        match self {
            Self::PodAtItsPort | Self::AnyPort => true,
            Self::Pod
            | Self::PodWithoutPort
            | Self::Bridge(_)
            | Self::Prefix(_)
            | Self::Source(_) => false,
        }
    }

    fn local<'a>(
        &'a self,
        pods: &'a [LocalPod],
        source: IpAddr,
        arrival: Option<Arrival<'_>>,
    ) -> Option<Local<'a>> {
        let found = |passes: bool, local| passes.then_some(local);
        match self {
            Self::Pod => pod(pods, source, arrival?, |_| true),
            Self::PodAtItsPort => {
                let arrival = arrival?;
                pod(pods, source, arrival, |own| own.is_some_and(|own| is_at(own, arrival.port)))
            }
            Self::PodWithoutPort => pod(pods, source, arrival?, |own| own.is_none()),
            Self::AnyPort => match arrival?.port {
                BridgePort::None => None,
                BridgePort::Unnamed | BridgePort::Named(_) => Some(Local::Port),
            },
            Self::Bridge(name) => found(**name == *arrival?.interface, Local::Bridge(name)),
            Self::Prefix(prefix) => {
                found(arrival?.interface.starts_with(&**prefix), Local::Prefix(prefix))
            }
            Self::Source(range) => found(range.contains(source), Local::Range(*range)),
        }
    }
}

/// The recorded pod with this source and interface, if the port is right.
fn pod<'a>(
    pods: &'a [LocalPod],
    source: IpAddr,
    arrival: Arrival<'_>,
    is_port: impl Fn(Option<&str>) -> bool,
) -> Option<Local<'a>> {
    let is = |pod: &&LocalPod| {
        *pod.interface == *arrival.interface
            && pod.ips.contains(&source)
            && is_port(pod.port.as_deref())
    };
    pods.iter().find(is).map(Local::Pod)
}

/// Whether the packet came in through the pod's own port. An unknown port counts as the pod's.
fn is_at(own: &str, port: BridgePort<'_>) -> bool {
    match port {
        BridgePort::None => false,
        BridgePort::Unnamed => true,
        BridgePort::Named(named) => own == named,
    }
}
