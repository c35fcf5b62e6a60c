//! CHECK: whether the record, the result and the kernel agree.

use std::fmt::Debug;
use std::net::IpAddr;

use denizen_state::redirect::Redirect;
use denizen_state::{Attachment, HostInterface};

use super::{ObservedAttachment, asked_host_ports, existing, of_others};
use crate::config::PluginConfig;
use crate::environment::Attach;
use crate::error::CniError;
use crate::kernel::Netns;
use crate::prev_result::PrevResult;
use crate::redirect::{Location, differences, is_left};

/// Fails with all disagreements about the attachment of `call`.
pub(crate) fn check(
    call: &Attach,
    config: &PluginConfig<'_>,
    prev_result: &PrevResult,
) -> Result<(), CniError> {
    let id = call.named.id();
    let state = match existing(&config.run_dir)? {
        Some(run_dir) => run_dir.read()?,
        None => None,
    };
    let Some((record, state)) =
        state.as_ref().and_then(|state| Some((state.attachments.get(&id)?, state)))
    else {
        let run_dir = config.run_dir.display();
        return Err(CniError::Disagreement(format!("{} is not recorded in {run_dir}", id.0)));
    };
    let seen = ObservedAttachment::of(call, prev_result)?;
    let mut found = Vec::new();
    let asked = asked_host_ports(call, config)?;
    // The agent may have added host ports that another plugin serves.
    if config.port_mappings.is_some() || !record.host_ports_adopted {
        differ("host ports", &record.host_ports, "passed", &asked, &mut found);
    }
    compare_call(record, call, config, prev_result, &mut found);
    let others = of_others(state, record.netns.as_deref(), &id);
    compare_rules(record, &others, &seen.netns, &mut found)?;
    compare_kernel(record, prev_result, seen, &mut found)?;
    match found.as_slice() {
        [] => Ok(()),
        found => Err(CniError::Disagreement(format!("{}: {}", id.0, found.join("; ")))),
    }
}

/// Compares the record with the call.
fn compare_call(
    record: &Attachment,
    call: &Attach,
    config: &PluginConfig<'_>,
    prev_result: &PrevResult,
    found: &mut Vec<String>,
) {
    differ("network", &record.network, "configured", &config.network, found);
    let netns = Some(call.netns.display().to_string());
    differ("netns", &record.netns, "called for", &netns, found);
    differ("addresses", &set(&record.ips), "in prevResult", &set(&prev_result.ips), found);
}

/// Compares the record with the rules in the pod. `others`: how its other attachments are
/// redirected.
fn compare_rules(
    record: &Attachment,
    others: &[&Redirect],
    netns: &Netns,
    found: &mut Vec<String>,
) -> Result<(), CniError> {
    let location = Location::of(netns, &record.if_name);
    if let Some(redirect) = &record.redirect {
        found.extend(differences(&location, redirect)?);
    }
    let kept = Vec::from_iter(record.redirect.iter().chain(others.iter().copied()));
    for obsolete in &record.obsolete_redirects {
        if is_left(&location, obsolete, &kept)? {
            found.push(
                "rules of an earlier ADD are left in the pod, since an ADD was killed before it \
                 removed them: the next ADD removes them"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// Compares the record with the kernel.
fn compare_kernel(
    record: &Attachment,
    prev_result: &PrevResult,
    mut seen: ObservedAttachment,
    found: &mut Vec<String>,
) -> Result<(), CniError> {
    let name = &record.if_name;
    match &seen.container {
        Some(container) => {
            let has = seen.pod.addresses(container.index).map_err(|error| {
                CniError::io(format!("cannot list the addresses of {name}"), error)
            })?;
            let recorded = set(&record.ips);
            let lost = recorded.iter().filter(|ip| !has.contains(ip));
            found.extend(
                lost.map(|ip| format!("address {ip} is recorded, but {name} does not have it")),
            );
        }
        // If the result lists no interface (a device passed to user space), there is no interface
        // to find.
        None if prev_result.has_interface || record.host_interface.is_some() => {
            found.push(format!("interface {name} is gone from the pod"));
        }
        None => {}
    }
    let index = |host: &Option<HostInterface>| host.as_ref().map(|host| host.index);
    let was = record.further_interfaces.iter();
    let was = was.map(|further| (&further.if_name, index(&further.host_interface), &further.ips));
    let is = seen.further.iter();
    let is =
        is.map(|further| (&further.if_name, index(&further.attached.host_interface), &further.ips));
    let [was, is] = [was.collect::<Vec<_>>(), is.collect()];
    differ("further interfaces", &was, "in the kernel", &is, found);
    let is = seen.attached;
    let (was, now) = (&record.host_interface, &is.host_interface);
    match (was, now) {
        (Some(was), Some(now)) => {
            differ("host interface's name", &was.name, "in the kernel", &now.name, found);
            differ("host interface's index", &was.index, "in the kernel", &now.index, found);
            differ("host interface's MAC address", &was.mac, "in the kernel", &now.mac, found);
        }
        (Some(was), None) => found.push(format!("host interface {} is gone", was.name)),
        (None, Some(now)) => found.push(format!("host interface {} is not recorded", now.name)),
        (None, None) => {}
    }
    if now.is_some() {
        differ("bridge", &record.bridge, "in the kernel", &is.bridge, found);
        differ("input interface", &record.l3_interface, "in the kernel", &is.l3_interface, found);
    }
    Ok(())
}

fn differ<T: PartialEq + Debug>(what: &str, was: &T, place: &str, is: &T, found: &mut Vec<String>) {
    if was != is {
        found.push(format!("{what}: recorded {was:?}, {place} {is:?}"));
    }
}

/// The addresses, sorted and each once.
fn set(ips: &[IpAddr]) -> Vec<IpAddr> {
    // An older version recorded IPv4-mapped addresses unchanged.
    let mut ips: Vec<_> = ips.iter().map(IpAddr::to_canonical).collect();
    ips.sort_unstable();
    ips.dedup();
    ips
}
