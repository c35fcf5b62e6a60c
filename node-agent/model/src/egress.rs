//! Egress masquerade: the destinations that see this node's pods by their own address.

use ipnetwork::IpNetwork;

use denizen_packet::{Family, family_of};

/// Which of the pods' connections, beyond those to services, are masqueraded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Egress {
    /// Towards these destinations pods keep their address. Sorted, without duplicates.
    pub kept: Vec<IpNetwork>,
    /// Whether IPv6 is masqueraded. IPv4 always is.
    pub v6: bool,
}

impl Egress {
    /// Whether anything of this family is masqueraded.
    pub fn covers(&self, family: Family) -> bool {
        match family {
            Family::V4 => true,
            Family::V6 => self.v6,
        }
    }

    pub fn kept(&self, family: Family) -> impl Iterator<Item = IpNetwork> + '_ {
        let kept = self.kept.iter().copied();
        kept.filter(move |range| family_of(range.ip()) == family)
    }
}
