//! A kernel in memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use denizen_ipvs::{
    IpvsCommand, IpvsError, ObservedServer, RealServer, RejectedCommand, ServerKey, VirtualServer,
};
use nix::errno::Errno;

use super::super::host::{Host, ServersError};
use super::super::state::{RealState, ServerState, note};

/// What it has, and how it misbehaves.
#[derive(Debug, Default)]
pub(super) struct FakeState {
    pub servers: BTreeMap<ServerKey, ServerState>,
    pub routes: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Schedulers that it does not have.
    pub without: BTreeSet<&'static str>,
    /// Virtual servers that it refuses.
    pub refuses: BTreeSet<ServerKey>,
    /// All commands and changes of routes, in order.
    pub log: Vec<String>,
    /// How many established connections each real server has.
    pub active: BTreeMap<SocketAddr, u32>,
    /// After as many more messages netlink fails.
    pub fails_after: Option<usize>,
}

/// A handle to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fake(pub Rc<RefCell<FakeState>>);

impl Fake {
    /// Takes the log.
    pub(super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut().log)
    }

    fn count(&self) -> Result<(), ServersError> {
        let left = &mut self.0.borrow_mut().fails_after;
        match left {
            Some(0) => Err(IpvsError::Missing.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Host for Fake {
    fn servers(&mut self) -> Result<Vec<VirtualServer>, ServersError> {
        Ok(self.0.borrow().servers.values().map(|state| state.server.clone()).collect())
    }

    fn has(&mut self, key: &ServerKey) -> Result<bool, ServersError> {
        Ok(self.0.borrow().servers.contains_key(key))
    }

    fn real_servers(&mut self, of: &ServerKey) -> Result<Vec<ObservedServer>, ServersError> {
        let active = |at: &SocketAddr| self.0.borrow().active.get(at).copied().unwrap_or(0);
        let of_server = |state: &ServerState| {
            let observed = |(at, real): (&SocketAddr, &RealState)| ObservedServer {
                real: RealServer { at: *at, weight: real.weight },
                translates: real.translates,
                active: active(at),
                inactive: 0,
            };
            state.reals.iter().map(observed).collect()
        };
        Ok(self.0.borrow().servers.get(of).map(of_server).unwrap_or_default())
    }

    fn apply(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedCommand>, ServersError> {
        let mut refused = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            self.count()?;
            let state = &mut *self.0.borrow_mut();
            match refusal(state, command) {
                Some(errno) => refused.push(RejectedCommand { command: index, errno }),
                None => {
                    note(&mut state.servers, command);
                    state.log.push(written(command));
                }
            }
        }
        Ok(refused)
    }

    fn routes(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, ServersError> {
        Ok(self.0.borrow().routes.clone())
    }

    fn add_routes(
        &mut self,
        routes: &[(IpAddr, IpAddr)],
    ) -> Result<BTreeMap<IpAddr, Errno>, ServersError> {
        for (ip, source) in routes {
            self.count()?;
            let state = &mut *self.0.borrow_mut();
            state.routes.insert(*ip, Some(*source));
            state.log.push(format!("local {ip} from {source}"));
        }
        Ok(BTreeMap::new())
    }

    fn remove_routes(&mut self, addresses: &[IpAddr]) -> Result<(), ServersError> {
        for ip in addresses {
            self.count()?;
            let state = &mut *self.0.borrow_mut();
            state.routes.remove(ip);
            state.log.push(format!("not local {ip}"));
        }
        Ok(())
    }
}

fn refusal(state: &FakeState, command: &IpvsCommand) -> Option<Errno> {
    let servers = &state.servers;
    let real = |key: &ServerKey, at| servers.get(key).map(|it| it.reals.contains_key(at));
    let lacks = |server: &VirtualServer| state.without.contains(&*server.scheduler);
    match command {
        IpvsCommand::Add(server) if servers.contains_key(&server.key) => Some(Errno::EEXIST),
        IpvsCommand::Change(server) if !servers.contains_key(&server.key) => Some(Errno::ESRCH),
        IpvsCommand::Add(server) | IpvsCommand::Change(server) if lacks(server) => {
            Some(Errno::ENOENT)
        }
        IpvsCommand::Add(server) if state.refuses.contains(&server.key) => Some(Errno::EINVAL),
        IpvsCommand::Add(_) | IpvsCommand::Change(_) => None,
        IpvsCommand::Remove(key) => (!servers.contains_key(key)).then_some(Errno::ESRCH),
        IpvsCommand::AddReal(key, it) => match real(key, &it.at) {
            None => Some(Errno::ESRCH),
            Some(is_there) => is_there.then_some(Errno::EEXIST),
        },
        IpvsCommand::ChangeReal(key, it) => match real(key, &it.at) {
            None => Some(Errno::ESRCH),
            Some(is_there) => (!is_there).then_some(Errno::ENOENT),
        },
        IpvsCommand::RemoveReal(key, at) => match real(key, at) {
            None => Some(Errno::ESRCH),
            Some(is_there) => (!is_there).then_some(Errno::ENOENT),
        },
    }
}

fn written(command: &IpvsCommand) -> String {
    match command {
        IpvsCommand::Add(it) => format!("add {} {}", it.key, it.scheduler),
        IpvsCommand::Change(it) => format!("change {} {}", it.key, it.scheduler),
        IpvsCommand::Remove(key) => format!("remove {key}"),
        IpvsCommand::AddReal(key, real) => format!("add {key} {} {}", real.at, real.weight),
        IpvsCommand::ChangeReal(key, real) => format!("change {key} {} {}", real.at, real.weight),
        IpvsCommand::RemoveReal(key, at) => format!("remove {key} {at}"),
    }
}
