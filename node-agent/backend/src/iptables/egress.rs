//! Egress masquerade: local pods' connections to destinations that are not services. Pure.
//!
//! The chains are in the table `security`, in its FORWARD. That is the last place where iptables
//! knows the input interface, and the destination is already a service's endpoint there. Earlier,
//! in mangle, the mark would let every pod's connection past the operator's own rules
//! (`KUBE-FORWARD` accepts marked packets). Later, in nat POSTROUTING, a bridge's frames have no
//! input interface, and before Linux 5.5 (28f8bfd1ac94) no packet has. `MARK` is allowed in any
//! table (net/netfilter/xt_mark.c).

use super::name::{ChainId, ChainName, EGRESS, FORWARDED};
use super::rule::{Match, Rule, Target};
use super::ruleset_config::RulesetConfig;
use crate::why::Why;
use denizen_iptables::{IptablesError, Table};
use denizen_model::Family;
use denizen_text::describe;

/// The chains, each after those that jump to it.
pub(super) fn chains(config: &RulesetConfig) -> Vec<(ChainId, Vec<Rule>)> {
    let Some(kept) = &config.egress else {
        return Vec::new();
    };
    let rule = |why, tests: Vec<Match>, target| Rule::new(why, &"".into(), tests, target);
    let pods = config.local.iter().cloned().map(|is| {
        let first = rule(Why::PodsAlone, vec![Match::FirstPacket], Target::Jump(EGRESS));
        first.also(is)
    });
    let kept = kept
        .iter()
        .map(|range| rule(Why::StaysInside, vec![Match::Destination(*range)], Target::Return));
    let mark = Target::Mark(config.node_side.masquerade_bit);
    vec![
        ((Table::Security, FORWARDED), pods.chain(config.clear_port_bit()).collect()),
        ((Table::Security, EGRESS), kept.chain([rule(Why::GoesOut, Vec::new(), mark)]).collect()),
    ]
}

/// The jump to the first of these chains, from FORWARD.
pub(super) fn jump(config: &RulesetConfig) -> Option<(ChainId, Rule)> {
    config.egress.as_ref()?;
    let jump = Rule::new(Why::BehindFilter, &"".into(), [], Target::Jump(FORWARDED));
    Some(((Table::Security, ChainName::BuiltIn("FORWARD")), jump))
}

/// A text that says why egress masquerade is not in the kernel, and what the kernel lacks.
pub fn failure_text(family: Family, error: &IptablesError) -> String {
    let why = describe(error);
    let (module, setting) = match family {
        Family::V4 => ("iptable_security", "CONFIG_IP_NF_SECURITY"),
        Family::V6 => ("ip6table_security", "CONFIG_IP6_NF_SECURITY"),
    };
    // libiptc's text for a table that the kernel does not have.
    let missing = if why.contains("unable to initialize table") {
        format!(
            "; this kernel is without {module} ({setting}), which --iptables-variant nft does not need"
        )
    } else {
        String::new()
    };
    format!(
        "egress masquerade of {family} is not programmed as it should be (services are): {why}{missing}"
    )
}
