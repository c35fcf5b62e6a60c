//! What nf_tables does for a frontend whose endpoints IPVS chooses among. Pure.

use std::borrow::Cow;
use std::net::SocketAddr;

use denizen_plan::{
    Carrier, Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, IpvsPlan, Outcome,
};

/// The frontend as nf_tables forwards it. If IPVS carries it and is `ready`, its one endpoint is
/// the virtual server: at the cluster IP itself that translates nothing, and elsewhere IPVS sees
/// the packet as if the client had used the cluster IP. So the maps stay the gate, and what they
/// decide about sources, masquerade and refusal holds for both carriers.
pub(super) fn carried<'a>(
    frontend: &'a Frontend,
    ipvs: Option<&IpvsPlan>,
    ready: &dyn Fn(&FrontendKey) -> bool,
) -> Cow<'a, Frontend> {
    let virtual_server = || {
        let Carrier::Ipvs(server) = ipvs?.carrier(frontend) else { return None };
        let FrontendAddress::Ip(ip) = server.address else { return None };
        let address = SocketAddr::new(ip, server.port.get());
        ready(&server).then(|| Endpoints::new(vec![Endpoint { address, local: false }]))?
    };
    match virtual_server() {
        Some(only) => Cow::Owned(Frontend { inside: Outcome::Forward(only), ..frontend.clone() }),
        None => Cow::Borrowed(frontend),
    }
}
