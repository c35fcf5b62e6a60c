//! The commands, one function each.

mod add;
mod check;
mod del;
mod gc;
mod inspect;
mod status;

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::path::Path;
use std::time::Duration;

use denizen_state::redirect::Redirect;
use denizen_state::{AttachmentId, HostPort, RunDir, State, StateError};

pub(crate) use add::add;
pub(crate) use check::check;
pub(crate) use del::del;
pub(crate) use gc::gc;
pub use inspect::inspect;
pub(crate) use status::status;

use crate::config::PluginConfig;
use crate::environment::Attach;
use crate::error::CniError;
use crate::host_port::host_ports;
use crate::kernel::{
    Attached, FurtherInterface, Netns, NetnsLink, NetnsLinks, attached, further_interfaces,
};
use crate::prev_result::PrevResult;

/// How long a writer waits for the lock. After that the call fails, and the runtime must try again.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// One attachment, as the kernel has it.
struct ObservedAttachment {
    netns: Netns,
    /// The interface inside the pod.
    container: Option<NetnsLink>,
    /// The links inside the pod.
    pod: NetnsLinks,
    attached: Attached,
    /// Other interfaces that the same ADD gave to the pod.
    further: Vec<FurtherInterface>,
}

impl ObservedAttachment {
    fn of(call: &Attach, prev_result: &PrevResult) -> Result<ObservedAttachment, CniError> {
        let path = call.netns.display();
        let not_one =
            |why| CniError::Environment(format!("CNI_NETNS cannot be used: {path}: {why}"));
        let netns = Netns::open(&call.netns).map_err(not_one)?;
        let mut pod = netns.links().map_err(not_one)?;
        let if_name = &call.named.if_name;
        let container = pod
            .named(if_name)
            .map_err(|error| CniError::io(format!("cannot look at {if_name} in {path}"), error))?;
        let on_node = |error| {
            CniError::io(format!("cannot look at the node's end of {if_name} in {path}"), error)
        };
        let mut node = NetnsLinks::open().map_err(on_node)?;
        let attached = attached(&mut node, container.as_ref(), &netns, &prev_result.host_links)
            .map_err(on_node)?;
        let further = further_interfaces(&mut node, &mut pod, &netns, &prev_result.further)
            .map_err(on_node)?;
        Ok(ObservedAttachment { netns, container, pod, attached, further })
    }
}

/// The host ports of the pod of `call`, if the entry asks for them.
fn asked_host_ports(call: &Attach, config: &PluginConfig<'_>) -> Result<Vec<HostPort>, CniError> {
    let passed = config.port_mappings.as_deref();
    passed.map_or_else(|| Ok(Vec::new()), |passed| host_ports(passed, call.pod.as_ref()))
}

/// How the other attachments in this network namespace are redirected, all but `own`.
fn of_others<'a>(state: &'a State, netns: Option<&str>, own: &AttachmentId) -> Vec<&'a Redirect> {
    let all = state.attachments.iter();
    let others = all.filter(|(id, record)| *id != own && record.netns.as_deref() == netns);
    others.filter_map(|(_, record)| record.redirect.as_ref()).collect()
}

/// Tells the runtime, which logs standard error. It may be closed, or its disk full: the call goes
/// on.
fn report(message: Arguments<'_>) {
    let _ = writeln!(stderr(), "denizen: {message}");
}

/// The run directory; `None` if it does not exist, and thus nothing is recorded.
fn existing(run_dir: &Path) -> Result<Option<RunDir>, StateError> {
    match RunDir::open(run_dir) {
        Err(StateError::NoRunDir { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}
