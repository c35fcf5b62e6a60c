//! What status shows of virtual servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use denizen_ipvs::{ObservedServer, ServerKey};

use super::Servers;
use crate::ipvs::host::{Host, ServersError};
use denizen_plan::Listed;

impl<H: Host> Servers<H> {
    /// The real servers that get no new connections, each with its virtual server.
    pub fn draining(&self) -> impl Iterator<Item = (ServerKey, SocketAddr)> + '_ {
        self.draining.iter().flat_map(|(key, reals)| reals.iter().map(|at| (*key, *at)))
    }

    /// Reads what those of [`Self::draining`] still have.
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn read_draining(&mut self) -> Result<Vec<(ServerKey, ObservedServer)>, ServersError> {
        let mut read = Vec::new();
        for (key, draining) in &self.draining {
            let reals = self.host.real_servers(key)?.into_iter();
            let reals = reals.filter(|it| draining.contains(&it.real.at));
            read.extend(reals.map(|real| (*key, real)));
        }
        Ok(read)
    }

    /// Reads a virtual server's real servers, in the kernel's order, if it [`Self::is_ready`].
    ///
    /// # Errors
    /// [`ServersError`].
    pub fn read_listed(&mut self, key: &ServerKey) -> Result<Vec<Listed>, ServersError> {
        let reals = if self.is_ready(key) { self.host.real_servers(key)? } else { Vec::new() };
        Ok(reals.into_iter().map(|it| (it.real.at, it.real.weight)).collect())
    }

    /// Takes note of which real servers of a virtual server get no new connections.
    pub(super) fn note_draining(&mut self, key: ServerKey) {
        let reals = self.known.get(&key).into_iter().flat_map(|state| &state.reals);
        let draining: BTreeSet<SocketAddr> =
            reals.filter(|(_, real)| real.weight == 0).map(|(at, _)| *at).collect();
        match draining.is_empty() {
            true => self.draining.remove(&key),
            false => self.draining.insert(key, draining),
        };
    }
}
