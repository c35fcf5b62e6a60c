//! The rules of one pod and what they have counted, for a person.

use std::fmt::Write;

use denizen_nft::Family;
use denizen_state::redirect::{Backend, Direction, Redirect, TABLE};

use super::install::{differences, found_rule, open, unreadable};
use super::iptables;
use super::program::chains;
use crate::error::CniError;
use crate::kernel::Netns;

/// What `redirect` has made of the connections of the pod in `netns`, and how the rules there
/// differ from it.
pub(crate) fn inspect(netns: &Netns, redirect: &Redirect) -> Result<String, CniError> {
    let mut text = match redirect.backend {
        Backend::Nftables => counted(netns, redirect)?,
        Backend::Iptables => iptables::counted(netns, redirect)?,
    };
    for (value, annotation) in &redirect.annotations {
        let _ = writeln!(text, "{value} is from the annotation {annotation}");
    }
    for difference in differences(netns, redirect)? {
        let _ = writeln!(text, "not as recorded: {difference}");
    }
    Ok(text)
}

/// Each rule with the connections that it has counted.
fn counted(netns: &Netns, redirect: &Redirect) -> Result<String, CniError> {
    let mut kernel = open(netns)?;
    let mut text = String::new();
    for (wanted, direction) in
        chains(redirect).iter().zip([Direction::Inbound, Direction::Outbound])
    {
        let chain = &wanted.chain.name;
        let seen = kernel
            .rules(Family::Inet, TABLE, Some(chain), |rule| {
                let place = found_rule(wanted, rule).place;
                (rule.chain() == Some(chain)).then(|| (place, rule.packets()))
            })
            .map_err(|error| unreadable(&error))?;
        let _ = writeln!(text, "connections {direction}:");
        for (place, rule) in redirect.rules(direction).iter().enumerate() {
            let its = seen.iter().find(|(of, _)| *of == Some(place));
            let count = its.map_or("missing".to_owned(), |(_, packets)| packets.to_string());
            let _ = writeln!(text, "{count:>8} {rule}");
        }
    }
    Ok(text)
}
