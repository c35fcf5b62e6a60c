//! Counters of the rules that drop and refuse, with iptables' nft variant.

use std::collections::HashMap;

use super::name::{EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, SERVICES};
use crate::service_drops::{ServiceDropReason, ServiceDrops};
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, TableFamily};

/// The table whose rules drop and refuse.
const FILTER: &str = "filter";

/// What a count is about: the rules of a chain that drop for one reason.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CountKey {
    family: Family,
    chain: &'static str,
    reason: ServiceDropReason,
}

type ChainCounts = HashMap<CountKey, u64>;

/// Totals of the rules' counters. A chain that is written again counts from 0, so its earlier count
/// is kept here.
#[derive(Debug, Default)]
pub struct DropCounters {
    last: ChainCounts,
    total: ServiceDrops,
}

impl DropCounters {
    /// Reads the kernel's counters. Returns the totals.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn read(&mut self) -> Result<ServiceDrops, NetlinkError> {
        let mut kernel = Kernel::open()?;
        let mut now = ChainCounts::new();
        for (family, tables) in [(Family::V4, TableFamily::Ip), (Family::V6, TableFamily::Ip6)] {
            let counted = kernel.rules(tables, FILTER, None, |rule| {
                let chain = counting_chain(rule.chain()?)?;
                Some((chain, reason_of(rule.xtables_comment()?)?, rule.packets()))
            })?;
            for (chain, reason, packets) in counted {
                *now.entry(CountKey { family, chain, reason }).or_default() += packets;
            }
        }
        self.take(now);
        Ok(self.total)
    }

    fn take(&mut self, now: ChainCounts) {
        for (key, packets) in &now {
            let last = self.last.get(key).copied().unwrap_or_default();
            // Fewer than before: the chain was written again.
            self.total.add(key.reason, packets.checked_sub(last).unwrap_or(*packets));
        }
        self.last = now;
    }
}

/// The name, if it is that of a chain of ours whose rules drop or refuse.
fn counting_chain(name: &str) -> Option<&'static str> {
    let chains = [SERVICES, EXTERNAL_SERVICES, PROXY_FIREWALL, NODE_PORTS, FORWARD];
    chains.into_iter().filter_map(|chain| chain.fixed()).find(|chain| *chain == name)
}

/// A rule's comment ends with its reason's text.
fn reason_of(comment: &str) -> Option<ServiceDropReason> {
    let ends =
        |reason: &ServiceDropReason| reason.rules().iter().any(|why| comment.ends_with(why.text()));
    ServiceDropReason::ALL.into_iter().find(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::Why;

    #[test]
    fn the_reason_is_found_behind_what_a_rule_is_about() {
        let unserved = format!("default/web:http has no endpoints: {}", Why::RefuseTcp.text());
        let cases = [
            (unserved.as_str(), Some(ServiceDropReason::NoEndpoints)),
            (Why::Invalid.text(), Some(ServiceDropReason::Invalid)),
            (Why::Martian.text(), Some(ServiceDropReason::Loopback)),
            (Why::AdmitMarked.text(), None),
            ("somebody else's", None),
        ];
        for (comment, expected) in cases {
            assert_eq!(reason_of(comment), expected, "{comment}");
        }
    }

    #[test]
    fn a_chain_that_is_written_again_loses_nothing_that_was_read() {
        use ServiceDropReason::{Invalid, NoEndpoints};
        let mut counters = DropCounters::default();
        let counted = |of_services: u64, of_forward: u64| {
            let key = |chain, reason| CountKey { family: Family::V4, chain, reason };
            ChainCounts::from([
                (key("KUBE-SERVICES", NoEndpoints), of_services),
                (key("KUBE-FORWARD", Invalid), of_forward),
            ])
        };
        for (of_services, of_forward, expected) in
            [(5, 1, (5, 1)), (7, 1, (7, 1)), (2, 4, (9, 4)), (2, 4, (9, 4))]
        {
            counters.take(counted(of_services, of_forward));
            let total = (counters.total.of(NoEndpoints), counters.total.of(Invalid));
            assert_eq!(total, expected);
        }
        // The chain is gone, and comes back.
        counters.take(ChainCounts::new());
        counters.take(counted(1, 0));
        assert_eq!(counters.total.of(NoEndpoints), 10);
    }
}
