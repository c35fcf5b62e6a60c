//! A rule's expressions, in a form in which those that were sent equal those that the kernel gives
//! back.
//!
//! The kernel says more than it was told: counters have counted, a range of one ends where it
//! begins, and what nobody asked for is zero. A rule's comment names what was sent, but whoever
//! replaces the rule can keep it.

use std::collections::BTreeMap;

use super::encode;
use super::name::TableFamily;
use super::rule::Rule;
use denizen_netlink::{Attributes, Writer};

/// An expression: its name, and its attributes that are not zero.
pub type Expression = (String, BTreeMap<u16, Vec<u8>>);

/// A rule's expressions as the kernel should give them back.
pub fn wanted(table_family: TableFamily, rule: &Rule) -> Vec<Expression> {
    let mut list = Writer::default();
    encode::rule(&mut list, table_family, rule);
    observed(Attributes::new(list.bytes()))
}

/// The expressions in a list of them (`NFTA_RULE_EXPRESSIONS`).
pub fn observed(list: Attributes<'_>) -> Vec<Expression> {
    list.map(|(_, expression)| settled(Attributes::new(expression))).collect()
}

fn settled(expression: Attributes<'_>) -> Expression {
    let name = expression.find_str(1).unwrap_or_default();
    let values = expression.nested(2).map(|(kind, value)| (kind, value_of(name, kind, value)));
    let mut values: BTreeMap<u16, Vec<u8>> = values.collect();
    match name {
        "counter" => values.clear(),
        "nat" => settle_nat(&mut values),
        // A reset has no code.
        "reject" if values.get(&1).is_some_and(|kind| **kind == RESET) => drop(values.remove(&2)),
        _ => {}
    }
    values.retain(|_, value| value.iter().any(|byte| *byte != 0));
    (name.to_owned(), values)
}

/// `NFT_REJECT_TCP_RST`, in network order.
const RESET: [u8; 4] = [0, 0, 0, 1];

/// Data is a value or a verdict (`NFTA_DATA_*`), and lies in an attribute of its own.
fn value_of(expression: &str, kind: u16, value: &[u8]) -> Vec<u8> {
    match (expression, kind) {
        ("immediate", 2) | ("cmp", 3) | ("bitwise", 4 | 5 | 7) => {
            let data = Attributes::new(value);
            let verdict = data.nested(2);
            [data.find(1), verdict.find(1), verdict.find(2)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .concat()
        }
        // The expression that each element of the set has of its own.
        ("dynset", 7) => {
            let (name, values) = settled(Attributes::new(value));
            let values =
                values.into_iter().map(|(kind, value)| [&kind.to_ne_bytes()[..], &value].concat());
            [name.into_bytes(), values.flatten().collect()].concat()
        }
        _ => value.to_vec(),
    }
}

/// The registers of the last address and port are those of the first where none are given, and the
/// kernel sets `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED` by itself.
fn settle_nat(values: &mut BTreeMap<u16, Vec<u8>>) {
    const FLAGS: u16 = 7;
    const BY_ITSELF: u8 = 0b11;
    for (first, last) in [(3, 4), (5, 6)] {
        if let Some(register) = values.get(&first).cloned() {
            values.entry(last).or_insert(register);
        }
    }
    if let Some(lowest) = values.get_mut(&FLAGS).and_then(|flags| flags.last_mut()) {
        *lowest &= !BY_ITSELF;
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use crate::backend::nftables::kernel::Kernel;
    use crate::backend::nftables::name::{Class, Group, TableFamily};
    use crate::backend::nftables::program::{chains, class_chains};
    use crate::backend::nftables::rule::Chain;
    use crate::backend::nftables::shape::Shape;
    use crate::backend::nftables::structure::Structure;
    use crate::backend::nftables::write::replace_structure;
    use crate::model::{Family, Protocol};
    use crate::plan::{Detector, MarkBit, NodeSide};

    fn all_chains(table_family: TableFamily, shape: &Shape) -> Vec<Chain> {
        let classes = Group::ALL.into_iter().flat_map(|group| {
            [None, Some(300)].map(|affinity| Class {
                group,
                protocol: Protocol::Tcp,
                size: 4,
                affinity,
            })
        });
        let of_classes = classes
            .filter(|_| table_family != TableFamily::Bridge)
            .flat_map(|class| class_chains(class, &shape.node_side));
        chains(table_family, shape).into_iter().chain(of_classes).collect()
    }

    fn shape(table_family: TableFamily, detector: Detector, egress: bool) -> Shape {
        let ranges = match table_family {
            TableFamily::Ip(Family::V4) => ["10.0.0.0/8", "10.96.0.0/13"],
            TableFamily::Ip(Family::V6) | TableFamily::Bridge => ["fd00::/64", "fd00::/61"],
        };
        let ranges = ranges.map(|range| range.parse().unwrap()).to_vec();
        Shape {
            detector,
            ranges: ranges.clone(),
            service_ranges: ranges.clone(),
            egress: egress.then_some(ranges),
            node_side: NodeSide {
                masquerade_bit: MarkBit::new(20).unwrap(),
                open_forward: true,
                ..NodeSide::default()
            },
        }
    }

    /// Else every look would find a difference, and repair what is right.
    #[test]
    fn the_kernel_gives_every_rule_back_as_it_was_sent() {
        let detectors = [
            Detector::PodState,
            Detector::PodPort,
            Detector::Bridge(vec!["cni0".into()]),
            Detector::BridgePort,
            Detector::InterfacePrefix(vec!["veth".into(), "a-long-name-123".into()]),
            Detector::NodeCidr(None),
        ];
        let alone = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
            let mut kernel = Kernel::open().unwrap();
            for (detector, table_family) in detectors
                .iter()
                .flat_map(|detector| TableFamily::ALL.map(|table_family| (detector, table_family)))
            {
                for egress in [false, true] {
                    let chains =
                        all_chains(table_family, &shape(table_family, detector.clone(), egress));
                    let present = kernel.observe(table_family).unwrap().table;
                    kernel
                        .write(table_family, |batch| {
                            replace_structure(batch, present, table_family, &chains)
                        })
                        .unwrap();
                    let seen = kernel.observe(table_family).unwrap();
                    let differs = seen.structure(table_family, &chains);
                    assert_eq!(
                        differs,
                        Some(Structure::default()),
                        "{detector:?}, {table_family}: {seen:?}"
                    );
                }
            }
        });
        alone.join().unwrap();
    }
}
