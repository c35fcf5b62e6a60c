//! What the backend needs of the kernel, as a trait: IPVS, and the routes that make virtual
//! servers' addresses local.

use std::collections::BTreeMap;
use std::net::IpAddr;

use denizen_ipvs::{
    IpvsCommand, IpvsError, ObservedServer, RejectedCommand, ServerKey, VirtualServer,
};
use denizen_route::RouteError;
use nix::errno::Errno;
use thiserror::Error;

/// Why virtual servers could not be programmed.
#[derive(Debug, Error)]
pub enum ServersError {
    /// IPVS could not be read or changed.
    #[error(transparent)]
    Ipvs(#[from] IpvsError),
    /// The routes of virtual servers' addresses could not be read or changed.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// The addresses of kube-proxy's device could not be read.
    #[error("cannot read the addresses of this node")]
    Addresses(#[source] Errno),
    /// Connection tracking does not see IPVS's packets (`net.ipv4.vs.conntrack`), so IPVS is not
    /// used.
    #[error("net.ipv4.vs.conntrack is not 1: connections through IPVS could not be masqueraded")]
    Untracked,
    /// Virtual servers of an earlier run are left to their connections, until the next attempt.
    #[error("virtual servers at {addresses} addresses still have connections")]
    Draining {
        /// How many addresses have such virtual servers.
        addresses: usize,
    },
    /// Others changed the same virtual servers each time that they were read.
    #[error("another program keeps changing the virtual servers of IPVS")]
    Disturbed,
}

/// The kernel, or its substitute in tests.
pub trait Host {
    /// All virtual servers, ours and others'.
    ///
    /// # Errors
    /// [`ServersError`].
    fn servers(&mut self) -> Result<Vec<VirtualServer>, ServersError>;

    /// Whether there is a virtual server at this key. Cheap, however many there are.
    ///
    /// # Errors
    /// [`ServersError`].
    fn has(&mut self, key: &ServerKey) -> Result<bool, ServersError>;

    /// A virtual server's real servers.
    ///
    /// # Errors
    /// [`ServersError`].
    fn real_servers(&mut self, of: &ServerKey) -> Result<Vec<ObservedServer>, ServersError>;

    /// Executes these commands in order. Returns those that the kernel refused.
    ///
    /// # Errors
    /// [`ServersError`] if it is not known what was done.
    fn apply(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedCommand>, ServersError>;

    /// Our local routes: each address, and the source that the node's own connections to it have.
    ///
    /// # Errors
    /// [`ServersError`].
    fn routes(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, ServersError>;

    /// Makes these addresses local. Each pair is an address, and the source of the node's own
    /// connections to it. Returns those that the kernel refused.
    ///
    /// # Errors
    /// [`ServersError`] if it is not known what was done.
    fn add_routes(
        &mut self,
        routes: &[(IpAddr, IpAddr)],
    ) -> Result<BTreeMap<IpAddr, Errno>, ServersError>;

    /// Removes our routes of these addresses.
    ///
    /// # Errors
    /// [`ServersError`] if it is not known what was done.
    fn remove_routes(&mut self, addresses: &[IpAddr]) -> Result<(), ServersError>;
}
