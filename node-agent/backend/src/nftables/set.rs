//! Keys and values of the sets and maps.

use super::name::{FilledBy, ServiceTable, SetName};
use denizen_nft::{DataType, Field, Set};

/// The most endpoints of a service address: slots are numbered with 16 bits.
pub const MOST_SLOTS: u32 = 65_535;

impl SetName {
    /// The driver's set, in a table of this family.
    pub fn declared(self, table_family: ServiceTable) -> Set {
        use Field::{DestinationPort, InputInterface, Priority, Protocol};
        let version = self.family(table_family);
        let (source, destination) = (Field::Source(version), Field::Destination(version));
        let at_address = [destination, Protocol, DestinationPort];
        let slot = Field::Random(MOST_SLOTS);
        let key: Vec<Field> = match self {
            Self::Services | Self::LocalServices | Self::RestrictedFrontends => at_address.into(),
            Self::Endpoints
            | Self::LocalEndpoints
            | Self::AffinitySlots
            | Self::LocalAffinitySlots => [&at_address[..], &[slot]].concat(),
            Self::NodePorts | Self::LocalNodePorts => vec![Protocol, DestinationPort],
            Self::NodePortEndpoints
            | Self::LocalNodePortEndpoints
            | Self::NodePortAffinitySlots
            | Self::LocalNodePortAffinitySlots => vec![Protocol, DestinationPort, slot],
            Self::ClusterIps | Self::NodePortAddresses => vec![destination],
            Self::LocalPods | Self::BridgedPods | Self::PodPorts | Self::PodPorts6 => {
                vec![InputInterface, source]
            }
            Self::VirtualIps => vec![Field::ArpTarget],
            Self::Hairpin => vec![source, destination],
            Self::AllowedSources => [&at_address[..], &[source]].concat(),
            // The number comes first: nft cannot list a rule that updates a set whose key begins
            // with an IPv6 address.
            Self::Affinity | Self::AffinityReserved | Self::AffinityBrief => {
                vec![Priority, source]
            }
            Self::AffinityBudget => vec![Priority],
            Self::AffinityEndpoints | Self::LocalAffinityEndpoints => {
                [&at_address[..], &[Priority]].concat()
            }
            Self::NodePortAffinityEndpoints | Self::LocalNodePortAffinityEndpoints => {
                vec![Protocol, DestinationPort, Priority]
            }
        };
        Set {
            id: self.id(),
            name: self.as_str(),
            comment: self.why(),
            key,
            is_ranged: self == Self::AllowedSources,
            data: self.data(destination),
            room: room(self),
        }
    }

    fn data(self, address: Field) -> DataType {
        let endpoint = || DataType::Fields(vec![address, Field::DestinationPort]);
        let number = || DataType::Fields(vec![Field::Priority]);
        match self {
            Self::Services | Self::LocalServices | Self::NodePorts | Self::LocalNodePorts => {
                DataType::Verdict
            }
            Self::Endpoints
            | Self::NodePortEndpoints
            | Self::LocalEndpoints
            | Self::LocalNodePortEndpoints
            | Self::AffinityEndpoints
            | Self::NodePortAffinityEndpoints
            | Self::LocalAffinityEndpoints
            | Self::LocalNodePortAffinityEndpoints => endpoint(),
            Self::Affinity
            | Self::AffinityReserved
            | Self::AffinityBrief
            | Self::AffinitySlots
            | Self::NodePortAffinitySlots
            | Self::LocalAffinitySlots
            | Self::LocalNodePortAffinitySlots => number(),
            Self::ClusterIps
            | Self::VirtualIps
            | Self::NodePortAddresses
            | Self::LocalPods
            | Self::BridgedPods
            | Self::PodPorts
            | Self::PodPorts6
            | Self::Hairpin
            | Self::RestrictedFrontends
            | Self::AllowedSources
            | Self::AffinityBudget => DataType::None,
        }
    }
}

/// The most elements that packets may add to a set; `None` for sets that packets do not fill. About
/// 100 bytes of the kernel's memory each.
pub fn room(set: SetName) -> Option<u32> {
    // One budget for each number of a service port.
    let is_small = matches!(set, SetName::AffinityBrief | SetName::AffinityBudget);
    // The reserve has room for 128 service ports that use up their budget twice: at once, and in
    // the time after.
    let room = if is_small { 1 << 16 } else { 1 << 18 };
    (set.filled_by() == FilledBy::Packets).then_some(room)
}
