use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::super::element::frontend_of;
use super::super::lower::lower;
use super::super::name::{Class, Group, ServiceSet, ServiceTable};
use super::super::number::Numbers;
use super::super::program;
use super::super::table::Table;
use super::super::table_config::TableConfig;
use super::slots::{frontend, key, to};
use denizen_fixture::{ip, pods, port, range};
use denizen_model::{Family, Protocol, ServiceName, SessionAffinity};
use denizen_nft::{Content, Delta, Element, Key, SetId, Statement, Value, Verdict};
use denizen_plan::{
    Detection, Detector, Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade,
    NodePlan, NodeSide, Outcome,
};

/// The kernel's sets and chains, with its own strictness.
#[derive(Default)]
struct StrictKernel {
    elements: HashMap<(SetId, Key), Element>,
    chains: BTreeSet<String>,
}

impl StrictKernel {
    fn commit(&mut self, table: &Table, delta: &Delta) {
        for chain in &delta.chains {
            assert!(self.chains.insert(chain.name.to_string()), "{} is there already", chain.name);
        }
        for key in &delta.delete {
            assert!(self.elements.remove(key).is_some(), "{key:?} is not there");
        }
        for element in &delta.add {
            let known = self.elements.insert((element.set, element.key), element.clone());
            assert!(known.is_none(), "{element:?} is there already");
            if let Value::Goto(chain) = &element.value {
                assert!(self.chains.contains(&**chain), "{chain} is not there");
            }
        }
        for chain in &delta.left_over {
            assert!(self.chains.remove(&**chain), "{chain} is not there");
            let leads_there = |element: &Element| element.value == Value::Goto(chain.clone());
            assert!(!self.elements.values().any(leads_there), "{chain} is in use");
        }
        let mut all: Vec<Element> = self.elements.values().cloned().collect();
        all.sort_by_key(|element| (element.set, element.key));
        assert_eq!(all, table.sorted_elements());
        let wanted: BTreeSet<String> =
            table.chains().iter().map(|chain| chain.name.to_string()).collect();
        assert_eq!(self.chains, wanted);
    }
}

fn start() -> (Table, StrictKernel) {
    let table = Table::new(ServiceTable::Ip(Family::V4), TableConfig::default());
    let chains = table.chains().iter().map(|chain| chain.name.to_string()).collect();
    (table, StrictKernel { chains, ..StrictKernel::default() })
}

/// A decision about one of few frontends; `None` when nobody claims it any more.
fn decision() -> impl Strategy<Value = (FrontendKey, Option<Frontend>)> {
    let outcome = || {
        prop_oneof![
            1 => Just(Outcome::Reject),
            1 => Just(Outcome::Drop),
            4 => proptest::collection::btree_set(0_u16..20, 1..20).prop_map(to),
        ]
    };
    let facts = (0_u8..6, any::<[bool; 4]>(), outcome(), proptest::option::of(outcome()), 0_u8..6);
    facts.prop_map(|(which, [gone, always, udp, external], inside, outside, extra)| {
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        let address = match which {
            0 => FrontendAddress::Node(Family::V4),
            1 => FrontendAddress::Node(Family::V6),
            n => FrontendAddress::Ip(ip(&format!("10.96.0.{}", n / 2))),
        };
        let at = FrontendKey { address, protocol, port: port(80 + u16::from(which % 2)) };
        let masquerade = if always { Masquerade::Always } else { Masquerade::UnlessLocalPod };
        let mut decided = Frontend {
            kind: if external { FrontendKind::ExternalIp } else { FrontendKind::ClusterIp },
            masquerade,
            outside,
            affinity: match extra {
                0..4 => SessionAffinity::None,
                _ => SessionAffinity::ClientIp { seconds: extra.into() },
            },
            sources: (extra == 2).then(|| [range("10.0.0.0/9"), range("192.168.0.0/30")].into()),
            ..frontend(at, inside)
        };
        if extra == 3 {
            decided.service_port.service = ServiceName::new("default", "other");
        }
        (at, (!gone).then_some(decided))
    })
}

proptest! {
    /// Whatever is decided in whatever order, several things at once: each delta is one that the
    /// kernel takes, and what it makes is what the table says.
    #[test]
    fn deltas_lead_where_the_table_is(
        steps in proptest::collection::vec(
            (proptest::collection::vec(decision(), 0..6), 0_usize..4, 0_u8..3, 0_u8..4),
            1..30,
        ),
    ) {
        let (mut table, mut kernel) = start();
        for (decisions, local, address, held) in steps {
            let mut delta = Delta::default();
            let decisions: BTreeMap<FrontendKey, Option<Frontend>> = decisions.into_iter().collect();
            for (key, frontend) in &decisions {
                table.change_frontend(*key, frontend.as_ref(), &mut delta);
            }
            let known = [("10.1.2.3", "cni0"), ("10.1.2.4", "cni0"), ("10.1.2.3", "veth1")];
            table.change_pods(&pods(1, &known[..local]), &mut delta);
            table.change_hairpins(known[..local].iter().map(|(at, _)| ip(at)), &mut delta);
            table.change_node_port_addresses(&[ip(&format!("192.168.0.{address}"))], &mut delta);
            let routed = (0..held).map(|n| ip(&format!("10.96.0.{}", 9 + n))).collect();
            table.change_routed_addresses(&routed, &mut delta);
            delta.sort();
            kernel.commit(&table, &delta);
        }
    }
}

#[test]
fn what_does_not_change_is_not_touched() {
    let (mut table, mut kernel) = start();
    let at = key("10.96.0.10");
    let mut change = |outcome: Outcome, kernel: &mut StrictKernel| {
        let mut delta = Delta::default();
        let decided = frontend(at, outcome);
        table.change_frontend(at, Some(&decided), &mut delta);
        kernel.commit(&table, &delta);
        (!delta.chains.is_empty(), delta.delete.len(), delta.add.len())
    };
    assert_eq!(
        change(to(0..3), &mut kernel),
        (true, 0, 5),
        "three endpoints, a verdict and the cluster IP"
    );
    assert_eq!(change(to(0..3), &mut kernel), (false, 0, 0), "the same again");
    assert_eq!(
        change(to([0, 1, 2, 3]), &mut kernel),
        (false, 0, 1),
        "one more in the class: no verdict"
    );
    assert_eq!(
        change(to([0, 1, 3]), &mut kernel),
        (false, 2, 1),
        "one less: the last moves into its slot"
    );
    assert_eq!(change(to([0, 1, 9]), &mut kernel), (false, 1, 1), "one replaced");
    assert_eq!(
        change(Outcome::Reject, &mut kernel),
        (false, 4, 1),
        "none left: the verdict is replaced"
    );
}

#[test]
fn every_chain_that_is_named_is_made() {
    let (mut table, _) = start();
    let decided = Frontend {
        affinity: SessionAffinity::ClientIp { seconds: 300 },
        outside: Some(to(0..2)),
        ..frontend(key("10.96.0.10"), to(0..5))
    };
    table.change_frontend(decided.key, Some(&decided), &mut Delta::default());
    let chains = table.chains();
    let names: BTreeSet<_> = chains.iter().map(|chain| &chain.name).collect();
    assert_eq!(names.len(), chains.len(), "each once");
    for rule in chains.iter().flat_map(|chain| &chain.rules) {
        for statement in &rule.statements {
            if let Statement::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) = statement {
                assert!(names.contains(chain), "{chain}");
            }
        }
    }
}

/// What stands beside everything on the node is short enough, and can be read by nft.
#[test]
fn every_reason_fits() {
    let detectors = [
        Detector::PodState,
        Detector::PodPort,
        Detector::BridgePort,
        Detector::Bridge(vec!["cni0".into()]),
        Detector::InterfacePrefix(vec!["veth".into()]),
        Detector::NodeCidr(None),
    ];
    let groups = [Group::Service, Group::NodePort, Group::LocalService, Group::LocalNodePort];
    let classes = groups.iter().flat_map(|group| {
        [None, Some(86_400)].map(|affinity| Class {
            group: *group,
            protocol: Protocol::Sctp,
            size: 65_536,
            affinity,
        })
    });
    let ip = ServiceTable::Ip(Family::V4);
    let mut chains: Vec<_> =
        classes.flat_map(|class| program::class_chains(ip, class, &NodeSide::default())).collect();
    for detector in detectors {
        let detection = Detection::new(&detector, &[range("10.0.0.0/9")]);
        let node = NodePlan { detection, ..NodePlan::default() };
        chains.extend(ServiceTable::ALL.into_iter().flat_map(|table_family| {
            program::chains(table_family, &TableConfig::new(table_family, &node))
        }));
    }
    let rules = chains.iter().flat_map(|chain| &chain.rules);
    let mut whys: BTreeSet<&str> = rules.clone().map(|rule| rule.why).collect();
    whys.extend(chains.iter().map(|chain| chain.why));
    whys.extend(
        ServiceTable::ALL
            .into_iter()
            .flat_map(|table| ServiceSet::of(table).map(move |set| set.declared(table).comment)),
    );
    for text in whys {
        assert!(text.len() <= 100 && !text.contains('"'), "{} bytes: {text}", text.len());
    }
    for rule in rules {
        assert!(rule.comment(denizen_nft::TableFamily::Ip).len() < 128);
    }
}

/// Whatever element of a frontend the kernel rejects, it is known whose it is.
#[test]
fn every_rejected_element_of_a_frontend_is_found() {
    let at_node = FrontendKey { address: FrontendAddress::Node(Family::V4), ..key("10.96.0.10") };
    let table_family = ServiceTable::Ip(Family::V4);
    let schema = table_family.schema();
    let frontend_of = |element: &Element| {
        let family = ServiceSet::of_id(element.set).family(table_family);
        frontend_of(family, schema.set(element.set), &element.key)
    };
    for own in [key("10.96.0.10"), at_node] {
        let decided = Frontend {
            outside: Some(to([2])),
            // They guard load balancer IPs.
            sources: matches!(own.address, FrontendAddress::Ip(_))
                .then(|| [range("192.0.2.0/24")].into()),
            ..frontend(own, to([1, 2, 3]))
        };
        let elements = lower(&decided, None, &mut Numbers::default()).elements(&own);
        assert!(elements.len() > 5, "{elements:?}");
        for element in &elements {
            assert_eq!(frontend_of(element), Some(own), "{element:?}");
        }
    }
    let address = Key::EMPTY.address(ip("6.0.0.80"));
    let cluster_ip = Element {
        set: ServiceSet::ClusterIps.id(),
        key: address,
        value: Value::Member,
        comment: None,
    };
    assert_eq!(frontend_of(&cluster_ip), None);
}
