//! How packets to an address leave this node.

use std::net::IpAddr;

use denizen_route::{PROTOCOL, Path, Routes};
use nix::net::if_::if_indextoname;
use serde::Serialize;

/// The route to an address, by all tables and rules.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RouteAnswer {
    /// Whether there is a route.
    reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    /// Missing if the address is a neighbour's, or this node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    /// The source address of masqueraded packets, and of packets whose sender has chosen none.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
    /// The address is this node's.
    local: bool,
}

pub(super) fn route(to: IpAddr) -> anyhow::Result<RouteAnswer> {
    let path = Routes::open(PROTOCOL)?.path(to)?;
    let Some(Path { link, gateway, source, is_local }) = path else {
        return Ok(RouteAnswer::default());
    };
    // The interface may be gone by now.
    let interface = if_indextoname(link).ok().map(|name| name.to_string_lossy().into_owned());
    Ok(RouteAnswer { reachable: true, interface, gateway, source, local: is_local })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_nodes_own_address_is_reachable() {
        let answer = route(IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(answer.reachable && answer.local, "{answer:?}");
        assert_eq!(answer.interface.as_deref(), Some("lo"));
    }
}
