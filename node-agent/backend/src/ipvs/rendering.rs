//! A plan, rendered as nf_tables rules and virtual servers. Pure.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::gate::gate;
use crate::nftables::Nftables;
use denizen_nft::comment_text;
use denizen_plan::{FrontendAddress, FrontendKey, Plan, PlanChanges, PlannedServer, Share};

/// The rules, and the virtual servers that they lead to.
#[derive(Debug, Serialize)]
pub struct IpvsRendering {
    #[serde(flatten)]
    rules: denizen_nft::Rendering,
    #[serde(rename = "virtualServers")]
    servers: Vec<ServerText>,
}

/// A virtual server, as `ipvsadm` writes it.
#[derive(Debug, Serialize)]
struct ServerText {
    address: String,
    scheduler: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<String>,
    service: String,
    #[serde(rename = "realServers")]
    real_servers: Vec<String>,
}

/// Renders a plan, as if its virtual servers were in the kernel. Endpoints that drain are left out:
/// only a kernel that has them keeps them.
pub fn render(plan: &Plan) -> IpvsRendering {
    let servers = || plan.ipvs().into_iter().flat_map(|ipvs| ipvs.servers());
    let addresses = servers().filter_map(|(server, _)| match server.address {
        FrontendAddress::Ip(ip) => Some(ip),
        FrontendAddress::Node(_) => None,
    });
    let mut rules = Nftables::offline();
    rules.change_routed_addresses(&addresses.collect());
    rules.update_as(plan, &PlanChanges::from_nothing(plan), &|frontend| {
        gate(frontend, plan.ipvs(), &|_| true)
    });
    let servers = servers().filter_map(|(key, server)| ServerText::of(key, server)).collect();
    IpvsRendering { rules: rules.rendering(), servers }
}

impl ServerText {
    fn of(key: &FrontendKey, server: &PlannedServer) -> Option<Self> {
        let FrontendAddress::Ip(ip) = key.address else { return None };
        let at = SocketAddr::new(ip, key.port.get());
        let scheduler = server.scheduler;
        let flags = [("fallback", scheduler.fallback), ("port", scheduler.hashes_port)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        let ready = server.endpoints.iter().filter(|(_, share)| **share == Share::Ready);
        Some(Self {
            address: format!("--{}-service {at}", key.protocol),
            scheduler: scheduler.method.name(),
            flags: flags.map(|(flag, _)| format!("{}-{flag}", scheduler.method)).collect(),
            service: comment_text(&server.service_port.to_string()),
            real_servers: ready.map(|(at, _)| at.to_string()).collect(),
        })
    }
}

impl fmt::Display for IpvsRendering {
    /// The virtual servers are comments behind the rules, so that `nft -f` takes all of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)?;
        for ServerText { address, scheduler, flags, service, real_servers } in &self.servers {
            let flags = match flags.is_empty() {
                true => String::new(),
                false => format!(" --sched-flags {}", flags.join(",")),
            };
            writeln!(f, "\n# virtual server of {service}")?;
            writeln!(f, "# ipvsadm --add-service {address} --scheduler {scheduler}{flags}")?;
            for at in real_servers {
                writeln!(
                    f,
                    "# ipvsadm --add-server {address} --real-server {at} --masquerading --weight 1"
                )?;
            }
        }
        Ok(())
    }
}
