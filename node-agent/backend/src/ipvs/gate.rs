//! The frontend as nf_tables programs it: how its connections are led to its virtual server. Pure.
//!
//! Whether the virtual server is ready is known here and not in the plan: it depends on what the
//! kernel has, and ends before the kernel's server is disturbed.

use std::borrow::Cow;
use std::net::SocketAddr;

use denizen_plan::{
    Balancer, Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, IpvsPlan, Outcome,
};

/// The frontend as nf_tables has it. If IPVS carries it and its virtual server `is_ready`, that is
/// its one endpoint: at the cluster IP itself nothing is translated, and elsewhere IPVS sees the
/// packet as if the client had used the cluster IP. So nf_tables' map stays the gate, and what it
/// decides about sources, masquerade and refusal holds for both carriers.
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
