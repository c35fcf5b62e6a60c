//! Somebody else's chains in the forward hook, where they drop what denizen forwards.
//!
//! What one table accepts another may still drop, so a default-deny host is opened only in the
//! chain that drops. Two rules do, as kube-proxy's KUBE-FORWARD has two: answers (KEP-2450:
//! `RELATED,ESTABLISHED`, with no CIDR at all), and what was forwarded to an endpoint. kube-proxy
//! knows the latter by the packet's masquerade mark, which only the first packet has, and only
//! where the source is replaced; denizen's rules mark the *connection*, so that a second packet
//! before the first answer, a local pod's connection and one under policy Local pass too, and
//! nobody else's translated connection does.
//!
//! What can be known exactly: whether a chain drops what none of its rules was made for, and
//! whether it has any rule that lets something through. Whether those rules are made for this
//! node's services cannot.

mod chain;
mod legacy;
mod nft;
mod own;
mod task;

use thiserror::Error;
use tracing::{info, warn};

pub use chain::DefaultFate;
pub use task::run;

use crate::describe::describe;
use crate::iptables::IptablesError;
use crate::plan::MarkBit;
use denizen_netlink::NetlinkError;
use denizen_nft::{IpVersion, Kernel, NftError};

/// What the comments of our rules in other chains begin with. A restarted agent knows them by it,
/// whatever words follow.
const OWN: &str = "denizen: ";

/// Why the forward hook cannot be read or opened.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// nf_tables cannot be read.
    #[error("the forward hook's chains in nf_tables")]
    Netlink(#[from] NetlinkError),
    /// nf_tables cannot be changed.
    #[error("the forward hook's chains in nf_tables")]
    Refused(#[from] NftError),
    /// Legacy iptables is in use, and cannot be read or changed.
    #[error("legacy iptables is in use here")]
    Legacy(#[from] IptablesError),
}

/// Somebody else's chain in the forward hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Whose, and which.
    what: String,
    /// What it does.
    default_fate: DefaultFate,
    /// Our rules in it.
    own: Vec<u64>,
}

/// What is wrong with the forward hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// What certainly is.
    pub errors: Vec<String>,
    /// What may be.
    pub warnings: Vec<String>,
}

/// Looks at the forward hook and, where the operator asked for it, opens it.
///
/// Nothing is remembered: whatever is found is brought to what is wanted, so it may be repeated at
/// any time.
pub fn look(open: bool) -> Findings {
    let mut findings = Findings::default();
    let mut note = |result: Result<(), ForwardError>| {
        findings.errors.extend(result.err().map(|error| describe(&error)));
    };
    let mut seen = Vec::new();
    note(through_netlink(open, &mut seen));
    for family in IpVersion::BOTH {
        note(through_iptables(family, open, &mut seen));
    }
    if !open {
        seen.iter().for_each(|chain| chain.report(&mut findings));
    }
    findings
}

/// Looks at the forward hook, and changes nothing. Chains that denizen's rules have opened are
/// well.
pub fn inspect() -> Findings {
    let mut findings = Findings::default();
    let mut seen: Vec<Chain> = Vec::new();
    let read = Kernel::open().and_then(|mut kernel| nft::read(&mut kernel));
    match read {
        Ok(chains) => seen.extend(chains.into_iter().map(|(_, chain)| chain)),
        Err(error) => findings.errors.push(describe(&ForwardError::from(error))),
    }
    for family in IpVersion::BOTH {
        match legacy::read(family) {
            Ok(chain) => seen.extend(chain),
            Err(error) => findings.errors.push(describe(&error)),
        }
    }
    let closed = seen.iter().filter(|chain| chain.own.len() != Chain::RULES);
    closed.for_each(|chain| chain.report(&mut findings));
    findings
}

/// Removes our rules from everybody's chains; returns how many chains had some.
///
/// # Errors
/// [`ForwardError`]; everything that could be removed was.
pub fn cleanup() -> Result<usize, ForwardError> {
    let mut seen = Vec::new();
    let mut result = through_netlink(false, &mut seen);
    for family in IpVersion::BOTH {
        result = result.and(through_iptables(family, false, &mut seen));
    }
    result.map(|()| seen.iter().filter(|chain| !chain.own.is_empty()).count())
}

fn through_netlink(open: bool, seen: &mut Vec<Chain>) -> Result<(), ForwardError> {
    let mut kernel = Kernel::open()?;
    for (place, chain) in nft::read(&mut kernel)? {
        let admitted = chain.must_open(open).then_some(MarkBit::ADMITTED);
        let own: &[u64] = if chain.must_close(open) { &chain.own } else { &[] };
        nft::write(&mut kernel, &place, own, admitted)?;
        seen.push(chain.changed(open));
    }
    Ok(())
}

fn through_iptables(
    family: IpVersion,
    open: bool,
    seen: &mut Vec<Chain>,
) -> Result<(), ForwardError> {
    let Some(chain) = legacy::read(family)? else {
        return Ok(());
    };
    if chain.must_close(open) {
        legacy::close(family)?;
    }
    if chain.must_open(open) {
        legacy::open(family, MarkBit::ADMITTED)?;
    }
    seen.push(chain.changed(open));
    Ok(())
}

impl Chain {
    /// How many rules of ours make it open.
    const RULES: usize = 2;

    fn is_wanted_open(&self, open: bool) -> bool {
        open && self.default_fate != DefaultFate::Passes
    }

    fn must_close(&self, open: bool) -> bool {
        let right = if self.is_wanted_open(open) { Self::RULES } else { 0 };
        !self.own.is_empty() && self.own.len() != right
    }

    fn must_open(&self, open: bool) -> bool {
        self.is_wanted_open(open) && self.own.len() != Self::RULES
    }

    /// Says what was done to it.
    fn changed(self, open: bool) -> Self {
        if self.must_open(open) {
            warn!(
                chain = self.what,
                "added rules that accept services' connections in a FORWARD chain that drops"
            );
        } else if self.must_close(open) {
            info!(chain = self.what, "denizen's rules in it are removed");
        }
        self
    }

    fn report(&self, findings: &mut Findings) {
        let what = &self.what;
        match self.default_fate {
            DefaultFate::Passes => {}
            DefaultFate::Drops { all: true } => findings.errors.push(format!(
                "{what} drops all forwarded packets, services' connections too; --open-forward adds \
                 rules that accept them"
            )),
            DefaultFate::Drops { all: false } => findings.warnings.push(format!(
                "{what} drops by default. Its rules may or may not accept services' connections; \
                 --open-forward adds rules that accept them"
            )),
        }
    }
}
