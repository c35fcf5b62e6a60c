//! The interface through which a packet came in.

use super::FirstPacket;
use crate::{Arrival, BridgePort};
use denizen_model::LocalPod;

/// The packet's input interface and bridge port. If the question names no interface, both are as
/// recorded for the pod with this source; if it names that pod's bridge, the port is the recorded
/// one.
pub(super) fn arrival<'a>(pods: &'a [LocalPod], packet: &'a FirstPacket) -> Option<Arrival<'a>> {
    let of_source = || pods.iter().filter(|pod| pod.ips.contains(&packet.source));
    let port = |port: Option<&'a str>| port.map_or(BridgePort::None, BridgePort::Named);
    let Some(named) = packet.interface.as_deref() else {
        return of_source()
            .next()
            .map(|pod| Arrival { interface: &pod.interface, port: port(pod.port.as_deref()) });
    };
    if let Some(pod) = pods.iter().find(|pod| pod.port.as_deref() == Some(named)) {
        return Some(Arrival { interface: &pod.interface, port: BridgePort::Named(named) });
    }
    let port = match of_source().find(|pod| *pod.interface == *named) {
        Some(pod) => port(pod.port.as_deref()),
        None if pods.iter().any(|pod| *pod.interface == *named && pod.port.is_some()) => {
            BridgePort::Unnamed
        }
        None => BridgePort::None,
    };
    Some(Arrival { interface: named, port })
}
