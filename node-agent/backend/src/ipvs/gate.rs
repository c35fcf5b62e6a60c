//! The frontend as nf_tables programs it: how its connections are led to its virtual server. Pure.
//!
//! The plan does not say whether the virtual server is ready: that depends on the kernel's state.
//! It ceases to be ready before the kernel's virtual server is disturbed.

use std::borrow::Cow;
use std::net::SocketAddr;

use denizen_plan::{
    Balancer, Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, IpvsPlan, Outcome,
};

/// The frontend as nf_tables has it. If IPVS carries the frontend and its virtual server
/// `is_ready`, the virtual server is its only endpoint. So the destination of a packet to the
/// cluster IP stays the same, and a packet to another frontend reaches IPVS as if the client had
/// used the cluster IP. Each connection still passes nf_tables' map, and what is decided there
/// about sources, masquerade and refusal holds whether IPVS or nf_tables balances.
pub(super) fn gate<'a>(
    frontend: &'a Frontend,
    ipvs: Option<&IpvsPlan>,
    is_ready: &dyn Fn(&FrontendKey) -> bool,
) -> Cow<'a, Frontend> {
    let virtual_server = || {
        let Balancer::Ipvs(server) = ipvs?.balancer(frontend) else { return None };
        let FrontendAddress::Ip(ip) = server.address else { return None };
        let address = SocketAddr::new(ip, server.port.get());
        is_ready(&server).then(|| Endpoints::new(vec![Endpoint { address, local: false }]))?
    };
    match virtual_server() {
        Some(only) => Cow::Owned(Frontend { inside: Outcome::Forward(only), ..frontend.clone() }),
        None => Cow::Borrowed(frontend),
    }
}
