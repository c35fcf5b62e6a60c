use std::io::ErrorKind;
use std::net::UdpSocket;

use nix::sched::{CloneFlags, unshare};

use crate::backend::nftables::error::NftablesError;
use crate::backend::nftables::name::{Class, Group, Known, TableFamily};
use crate::backend::nftables::program::{chains, class_chains};
use crate::backend::nftables::table::{Difference, Table};
use crate::backend::nftables::table_config::TableConfig;
use crate::backend::nftables::tests::with_addresses_routed_here;
use crate::backend::nftables::write::load;
use crate::fixture::ip;
use crate::model::{Egress, Family, Protocol};
use crate::plan::{Detection, Detector, EgressMasquerade, MarkBit, NodePlan, NodeSide};
use denizen_nft::{Chain, Kernel, NftError, Structure};

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

/// With the backend ipvs, cluster IPs are routed to the node. A table that another change kept from
/// being replaced must not let packets pass to the node's own ports.
#[test]
fn a_table_that_is_being_replaced_lets_nothing_pass_to_unused_ports() {
    const SERVICE: &str = "10.96.0.10";
    with_addresses_routed_here("10.96.0.10/32", || {
        let own = UdpSocket::bind("0.0.0.0:0").unwrap();
        let to = (SERVICE, own.local_addr().unwrap().port());
        let send = || UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"hi", to);

        let family = TableFamily::Ip(Family::V4);
        let mut table = Table::new(family, TableConfig::default());
        table.hold_cluster_ips(&[ip(SERVICE)].into(), &mut Difference::default());
        let mut kernel = Kernel::open().unwrap();
        let seen = kernel.observe(&table.schema).unwrap();
        assert!(send().is_ok(), "without rules the node itself answers");
        load(&mut kernel, &seen, &table, Known::default()).unwrap();
        let seen = kernel.observe(&table.schema).unwrap();
        let bridge = TableFamily::Bridge.schema();
        kernel.write(bridge.family, |batch| batch.add_table(&bridge)).unwrap();

        let raced = load(&mut kernel, &seen, &table, Known::default());
        let is_raced = matches!(raced, Err(NftablesError::Driver(NftError::Raced { .. })));
        assert!(is_raced, "{raced:?}");
        assert_eq!(send().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let seen = kernel.observe(&table.schema).unwrap();
        load(&mut kernel, &seen, &table, Known::default()).unwrap();
        assert_eq!(send().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let seen = kernel.observe(&table.schema).unwrap();
        let chains = table.lowered_chains();
        assert_eq!(seen.structure(&table.schema, &chains), Some(Structure::default()));
    });
}
