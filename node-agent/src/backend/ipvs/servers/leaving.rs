//! What becomes of virtual servers that nobody wants any more, and of their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use denizen_ipvs::{Command, RealServer, ServerKey};
use nix::libc;

use super::Servers;
use crate::backend::ipvs::host::{Host, ServersError};

/// For as many looks, a quarter of an hour, a virtual server stays for connections that do not end.
const MOST_LOOKS: u32 = 15;

/// What goes, and the look since when.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Counts looks.
    pub looks: u32,
    servers: BTreeMap<ServerKey, u32>,
    addresses: BTreeMap<IpAddr, u32>,
}

impl<H: Host> Servers<H> {
    /// What is to be done about virtual servers that are not wanted, and that rules send nobody to.
    /// One with TCP connections gets no new ones, until a look finds it without. Whoever goes on to
    /// send datagrams is led elsewhere by rules, so there is nothing to wait for.
    pub(super) fn removals(
        &mut self,
        unwanted: &BTreeSet<ServerKey>,
    ) -> Result<Vec<Command>, ServersError> {
        let mut commands = Vec::new();
        for key in unwanted.iter().filter(|key| self.known.contains_key(key)) {
            let Leaving { looks, servers, .. } = &mut self.leaving;
            let since = *servers.entry(*key).or_insert(*looks);
            let may_stay = key.protocol == libc::IPPROTO_TCP as u8 && *looks - since < MOST_LOOKS;
            let reals = if may_stay { self.host.real_servers(key)? } else { Vec::new() };
            if reals.iter().all(|it| it.active + it.inactive == 0) {
                commands.push(Command::Remove(*key));
                continue;
            }
            let weighed = reals.iter().map(|it| it.real).filter(|real| real.weight > 0);
            let idle = |real| Command::ChangeReal(*key, RealServer { weight: 0, ..real });
            commands.extend(weighed.map(idle));
        }
        Ok(commands)
    }

    /// Removes the routes of addresses that have been without a virtual server of ours since an
    /// earlier look. Until then rules refuse what clients still send there, so that they need not
    /// wait for an answer.
    pub(super) fn remove_routes(&mut self) -> Result<usize, ServersError> {
        let used: BTreeSet<IpAddr> =
            self.wanted.keys().chain(self.known.keys()).map(|key| key.at.ip()).collect();
        let Leaving { looks, servers, addresses } = &mut self.leaving;
        servers.retain(|key, _| self.known.contains_key(key) && !self.wanted.contains_key(key));
        let unused: BTreeSet<IpAddr> =
            self.routes.keys().filter(|ip| !used.contains(ip)).copied().collect();
        addresses.retain(|ip, _| unused.contains(ip));
        let is_old = |ip: &IpAddr| *addresses.entry(*ip).or_insert(*looks) < *looks;
        let old: Vec<IpAddr> = unused.into_iter().filter(is_old).collect();
        if !old.is_empty() {
            self.host.remove_routes(&old)?;
            self.routes.retain(|ip, _| !old.contains(ip));
            self.has_moved = true;
        }
        Ok(old.len())
    }
}
