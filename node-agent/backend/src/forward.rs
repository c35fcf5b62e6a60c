//! Other firewalls' chains in the forward hook, which may drop what denizen forwards.
//!
//! A packet that one table accepts may still be dropped by another, so a default-deny host can be
//! opened only in the chain that drops. Two rules are enough, as in kube-proxy's KUBE-FORWARD: one
//! accepts answers (KEP-2450: `RELATED,ESTABLISHED`, with no CIDR at all), the other connections
//! that were forwarded to an endpoint. kube-proxy recognises the latter by the packet's masquerade
//! mark, which only the first packet has, and only if the source is replaced. denizen's rules mark
//! the *connection*: so a second packet before the first answer, a local pod's connection and one
//! under policy Local pass too, but no connection that another program translated.
//!
//! A chain's rules show exactly whether it drops packets that no rule expects, and whether any rule
//! lets something through. They do not show whether a rule is meant for this node's services.
//!
//! IPVS takes connections in the input hook, not the forward hook, so with IPVS the chains there
//! are inspected, too. One rule is enough there: a host's firewall already accepts answers to the
//! node itself.

mod chain;
mod legacy;
mod nft;
mod own;
mod task;

use thiserror::Error;
use tracing::{info, warn};

pub use chain::DefaultFate;
pub use task::run;

use denizen_iptables::IptablesError;
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::{Hook, Kernel, NftError};
use denizen_plan::MarkBit;
use denizen_text::describe;

/// The prefix of the comments of our rules in other firewalls' chains. A restarted agent recognises
/// the rules by it, whatever text follows.
const OWN: &str = "denizen: ";

/// Why the forward hook cannot be read or opened.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// nf_tables cannot be read.
    #[error("cannot read the forward hook's chains in nf_tables")]
    Netlink(#[from] NetlinkError),
    /// nf_tables cannot be changed.
    #[error("cannot change the forward hook's chains in nf_tables")]
    Refused(#[from] NftError),
    /// Legacy iptables is in use, and cannot be read or changed.
    #[error("legacy iptables is in use here")]
    Legacy(#[from] IptablesError),
}

/// Which packets a chain sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passing {
    /// Forwarded packets.
    Forward,
    /// Packets for this node, and for virtual servers.
    Input,
}

impl Passing {
    const ALL: [Self; 2] = [Self::Forward, Self::Input];

    fn hook(self) -> Hook {
        match self {
            Self::Forward => Hook::Forward,
            Self::Input => Hook::Input,
        }
    }

    /// The name of iptables' chain.
    fn chain(self) -> &'static str {
        match self {
            Self::Forward => "FORWARD",
            Self::Input => "INPUT",
        }
    }

    /// How many rules of ours make a chain open.
    fn rules(self) -> usize {
        match self {
            Self::Forward => 2,
            Self::Input => 1,
        }
    }

    fn matters(self, wanted: ForwardSettings) -> bool {
        match self {
            Self::Forward => true,
            Self::Input => wanted.by_ipvs,
        }
    }
}

/// What to do about other firewalls' chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardSettings {
    /// Open chains that drop for services' connections.
    pub open: bool,
    /// IPVS carries connections.
    pub by_ipvs: bool,
}

/// Another firewall's chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its table and its name, for messages.
    what: String,
    passing: Passing,
    /// What it does with packets that its rules do not expect.
    default_fate: DefaultFate,
    own: Vec<u64>,
}

/// Problems with other firewalls' chains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Chains that certainly drop services' connections.
    pub errors: Vec<String>,
    /// Chains that may drop some.
    pub warnings: Vec<String>,
}

/// Inspects other firewalls' chains and, if the operator asked for it, opens them.
///
/// Nothing is remembered: each call brings the chains that it finds to the wanted state.
pub fn reconcile(wanted: ForwardSettings) -> Findings {
    let mut findings = Findings::default();
    let mut note = |result: Result<(), ForwardError>| {
        findings.errors.extend(result.err().map(|error| describe(&error)));
    };
    let mut seen = Vec::new();
    note(through_netlink(wanted, &mut seen));
    for family in Family::BOTH {
        note(through_iptables(family, wanted, &mut seen));
    }
    if !wanted.open {
        let concerned = seen.iter().filter(|chain| chain.passing.matters(wanted));
        concerned.for_each(|chain| chain.report(&mut findings));
    }
    findings
}

/// Inspects others' chains, and changes nothing. Chains that denizen's rules have opened are no
/// problem. `by_ipvs`: IPVS carries connections.
pub fn inspect(by_ipvs: bool) -> Findings {
    let wanted = ForwardSettings { open: false, by_ipvs };
    let mut findings = Findings::default();
    let mut seen: Vec<Chain> = Vec::new();
    let read = Kernel::open().and_then(|mut kernel| nft::read(&mut kernel));
    match read {
        Ok(chains) => seen.extend(chains.into_iter().map(|(_, chain)| chain)),
        Err(error) => findings.errors.push(describe(&ForwardError::from(error))),
    }
    for family in Family::BOTH {
        match legacy::read(family) {
            Ok(chain) => seen.extend(chain),
            Err(error) => findings.errors.push(describe(&error)),
        }
    }
    let closed = seen.iter().filter(|chain| chain.passing.matters(wanted) && !chain.is_open());
    closed.for_each(|chain| chain.report(&mut findings));
    findings
}

/// Removes our rules from all other firewalls' chains. Returns how many chains had some.
///
/// # Errors
/// [`ForwardError`]; everything that could be removed was.
pub fn cleanup() -> Result<usize, ForwardError> {
    let mut seen = Vec::new();
    let nothing = ForwardSettings { open: false, by_ipvs: false };
    let mut result = through_netlink(nothing, &mut seen);
    for family in Family::BOTH {
        result = result.and(through_iptables(family, nothing, &mut seen));
    }
    result.map(|()| seen.iter().filter(|chain| !chain.own.is_empty()).count())
}

fn through_netlink(wanted: ForwardSettings, seen: &mut Vec<Chain>) -> Result<(), ForwardError> {
    let mut kernel = Kernel::open()?;
    for (base_chain, chain) in nft::read(&mut kernel)? {
        let admitted = chain.must_open(wanted).then_some(MarkBit::ADMITTED);
        let own: &[u64] = if chain.must_close(wanted) { &chain.own } else { &[] };
        nft::write(&mut kernel, &base_chain, own, admitted)?;
        seen.push(chain.changed(wanted));
    }
    Ok(())
}

fn through_iptables(
    family: Family,
    wanted: ForwardSettings,
    seen: &mut Vec<Chain>,
) -> Result<(), ForwardError> {
    for chain in legacy::read(family)? {
        if chain.must_close(wanted) {
            legacy::close(family, chain.passing)?;
        }
        if chain.must_open(wanted) {
            legacy::open(family, chain.passing, MarkBit::ADMITTED)?;
        }
        seen.push(chain.changed(wanted));
    }
    Ok(())
}

impl Chain {
    /// Whether all our rules are in it.
    fn is_open(&self) -> bool {
        self.own.len() == self.passing.rules()
    }

    fn is_wanted_open(&self, wanted: ForwardSettings) -> bool {
        let drops = self.default_fate != DefaultFate::Passes;
        wanted.open && drops && self.passing.matters(wanted)
    }

    fn must_close(&self, wanted: ForwardSettings) -> bool {
        let right = self.is_wanted_open(wanted) && self.is_open();
        !self.own.is_empty() && !right
    }

    fn must_open(&self, wanted: ForwardSettings) -> bool {
        self.is_wanted_open(wanted) && !self.is_open()
    }

    /// Logs what was done to it.
    fn changed(self, wanted: ForwardSettings) -> Self {
        if self.must_open(wanted) {
            warn!(
                chain = self.what,
                "added rules that accept services' connections in a chain that drops"
            );
        } else if self.must_close(wanted) {
            info!(chain = self.what, "denizen's rules in it are removed");
        }
        self
    }

    fn report(&self, findings: &mut Findings) {
        let what = &self.what;
        let packets = match self.passing {
            Passing::Forward => "forwarded packets",
            Passing::Input => "packets for this node",
        };
        match self.default_fate {
            DefaultFate::Passes => {}
            DefaultFate::Drops { all: true } => findings.errors.push(format!(
                "{what} drops all {packets}, services' connections too; --open-forward adds \
                 rules that accept them"
            )),
            DefaultFate::Drops { all: false } => findings.warnings.push(format!(
                "{what} drops by default. Its rules may or may not accept services' connections; \
                 --open-forward adds rules that accept them"
            )),
        }
    }
}
