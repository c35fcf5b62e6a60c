//! The rules of one pod and what they have counted, for a person.

use std::fmt::Write;

use denizen_nft::TableFamily;
use denizen_state::redirect::{ChainDirection, Redirect, RedirectBackend};

use super::install::{differences, found_rule, open, unreadable};
use super::iptables;
use super::location::Location;
use super::program::chains;
use crate::error::CniError;

/// What `redirect` has made of a pod's connections at `location`, and how the rules there differ
/// from it.
pub(crate) fn inspect(location: &Location<'_>, redirect: &Redirect) -> Result<String, CniError> {
    let mut text = match redirect.backend {
        RedirectBackend::Nftables => counted(location, redirect)?,
        RedirectBackend::Iptables => iptables::counted(location.netns, redirect)?,
    };
    for (value, annotation) in &redirect.annotations {
        let _ = writeln!(text, "{value} is from the annotation {annotation}");
    }
    for difference in differences(location, redirect)? {
        let _ = writeln!(text, "not as recorded: {difference}");
    }
    Ok(text)
}

/// Each rule with the connections that it has counted.
fn counted(location: &Location<'_>, redirect: &Redirect) -> Result<String, CniError> {
    let mut kernel = open(location.netns)?;
    let mut text = String::new();
    for (wanted, direction) in
        chains(redirect).iter().zip([ChainDirection::Inbound, ChainDirection::Outbound])
    {
        let chain = &wanted.chain.name;
        let seen = kernel
            .rules(TableFamily::Inet, &location.table, Some(chain), |rule| {
                let index = found_rule(wanted, rule).index;
                (rule.chain() == Some(chain)).then(|| (index, rule.packets()))
            })
            .map_err(|error| unreadable(&location.table, &error))?;
        let _ = writeln!(text, "connections {direction}:");
        for (index, rule) in redirect.rules(direction).iter().enumerate() {
            let its = seen.iter().find(|(of, _)| *of == Some(index));
            let count = its.map_or("missing".to_owned(), |(_, packets)| packets.to_string());
            let _ = writeln!(text, "{count:>8} {rule}");
        }
    }
    Ok(text)
}
