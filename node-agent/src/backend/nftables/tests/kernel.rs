use nix::sched::{CloneFlags, unshare};

use crate::backend::nftables::name::{Class, Group, TableFamily};
use crate::backend::nftables::program::{chains, class_chains};
use crate::backend::nftables::table_config::TableConfig;
use crate::model::{Egress, Family, Protocol};
use crate::plan::{Detection, Detector, EgressMasquerade, MarkBit, NodePlan, NodeSide};
use denizen_nft::{Chain, Kernel, Structure};

fn all_chains(table_family: TableFamily, config: &TableConfig) -> Vec<Chain> {
    let classes = Group::ALL.into_iter().flat_map(|group| {
        [None, Some(300)].map(|affinity| Class {
            group,
            protocol: Protocol::Tcp,
            size: 4,
            affinity,
        })
    });
    let of_classes = classes
        .filter(|_| matches!(table_family, TableFamily::Ip(_)))
        .flat_map(|class| class_chains(class, &config.node_side));
    let all = chains(table_family, config).into_iter().chain(of_classes);
    all.map(|chain| chain.lowered(table_family)).collect()
}

fn config(table_family: TableFamily, detector: Detector, egress: bool) -> TableConfig {
    let ranges = match table_family {
        TableFamily::Ip(Family::V4) | TableFamily::Arp => ["10.0.0.0/8", "10.96.0.0/13"],
        TableFamily::Ip(Family::V6) | TableFamily::Bridge => ["fd00::/64", "fd00::/61"],
    };
    let ranges = ranges.map(|range| range.parse().unwrap()).to_vec();
    let asked = egress.then(|| Egress { kept: ranges.clone(), v6: true });
    let node = NodePlan {
        detection: Detection::new(&detector, &ranges),
        service_ranges: ranges,
        egress: EgressMasquerade::new(asked.as_ref()),
        node_side: NodeSide {
            masquerade_bit: MarkBit::new(20).unwrap(),
            open_forward: true,
            ..NodeSide::default()
        },
        ..NodePlan::default()
    };
    TableConfig::new(table_family, &node)
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
                    all_chains(table_family, &config(table_family, detector.clone(), egress));
                let schema = table_family.schema();
                let is_there = kernel.observe(&schema).unwrap().is_there();
                let write = |batch: &mut denizen_nft::Batch| {
                    batch.replace_table(is_there, &schema, &chains)
                };
                kernel.write(schema.family, write).unwrap();
                let seen = kernel.observe(&schema).unwrap();
                let differs = seen.structure(&schema, &chains);
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
