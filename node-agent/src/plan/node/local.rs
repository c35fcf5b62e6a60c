//! Which packets come from this node's own pods.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::detector::Detector;
use crate::model::{Family, LocalPod, family_of};

/// How this node knows a packet of one of its own pods: any one of the tests is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detection {
    /// As the operator asked for it.
    pub detector: Detector,
    tests: Vec<LocalTest>,
}

/// What a packet of a local pod is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalTest {
    /// Input interface and source address are those of a recorded pod.
    Pod,
    /// The same; and the pod is bridged, and the packet came in through its port of the bridge.
    PodAtItsPort,
    /// Input interface and source address are those of a recorded pod that is not bridged.
    PodWithoutPort,
    /// It came in through any port of a bridge.
    AnyPort,
    /// It came in through this bridge.
    Bridge(Arc<str>),
    /// The input interface's name begins so.
    Prefix(Arc<str>),
    /// The source address is in this range.
    Source(IpNetwork),
}

/// Where a packet came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The input interface that the IP stack sees: a bridge, or a VLAN's device on it, for what
    /// came in through a port of one.
    pub interface: &'a str,
    /// What it came in through before that.
    pub port: Port<'a>,
}

/// The port of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port<'a> {
    /// There is no bridge.
    None,
    /// One of a bridge's, and it is not said which.
    Unnamed,
    /// This one.
    Named(&'a str),
}

/// Why a packet counts as local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Local<'a> {
    /// It is this recorded pod's.
    Pod(&'a LocalPod),
    /// It came in through a port of a bridge.
    Port,
    /// It came in through this bridge.
    Bridge(&'a str),
    /// Its input interface begins so.
    Prefix(&'a str),
    /// Its source lies in this range.
    Range(IpNetwork),
}

impl Detection {
    /// What `detector` stands for on a node whose object names these pod CIDRs.
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

    /// The tests that ask which port of a bridge a packet came in through, whatever its family.
    pub fn ports(&self) -> impl Iterator<Item = &LocalTest> {
        self.tests.iter().filter(|test| test.asks_port())
    }

    /// Whether a bridged pod's packet must have come in through the pod's port.
    pub fn proves_ports(&self) -> bool {
        self.tests.contains(&LocalTest::PodAtItsPort)
    }

    /// Whether, and why, a packet with this source that came in there is local. `None` means that
    /// the node itself sends.
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
    /// Whether it asks which port of a bridge a packet came in through.
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
                Port::None => None,
                Port::Unnamed | Port::Named(_) => Some(Local::Port),
            },
            Self::Bridge(name) => found(**name == *arrival?.interface, Local::Bridge(name)),
            Self::Prefix(prefix) => {
                found(arrival?.interface.starts_with(&**prefix), Local::Prefix(prefix))
            }
            Self::Source(range) => found(range.contains(source), Local::Range(*range)),
        }
    }
}

/// The recorded pod that sends so, if its port is the one that it should be.
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

/// Whether it came in through a pod's own port. Who does not say which means that one.
fn is_at(own: &str, port: Port<'_>) -> bool {
    match port {
        Port::None => false,
        Port::Unnamed => true,
        Port::Named(named) => own == named,
    }
}
