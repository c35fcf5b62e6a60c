use std::io::ErrorKind;
use std::net::UdpSocket;

use nix::sched::{CloneFlags, unshare};

use crate::nftables::name::{Class, Group, ServiceTable};
use crate::nftables::program::{chains, class_chains};
use crate::nftables::table::Table;
use crate::nftables::table_config::TableConfig;
use crate::nftables::tests::with_addresses_routed_here;
use denizen_fixture::ip;
use denizen_model::{Egress, Family, Protocol};
use denizen_nft::{Chain, Content, Delta, Keeper, Kernel, Structure};
use denizen_plan::{Detection, Detector, EgressMasquerade, MarkBit, NodePlan, NodeSide};

fn all_chains(table_family: ServiceTable, config: &TableConfig) -> Vec<Chain> {
    let classes = Group::ALL.into_iter().flat_map(|group| {
        [None, Some(300)].map(|affinity| Class {
            group,
            protocol: Protocol::Tcp,
            size: 4,
            affinity,
        })
    });
    let of_classes = classes
        .filter(|_| matches!(table_family, ServiceTable::Ip(_)))
        .flat_map(|class| class_chains(table_family, class, &config.node_side));
    chains(table_family, config).into_iter().chain(of_classes).collect()
}

fn config(table_family: ServiceTable, detector: Detector, egress: bool) -> TableConfig {
    let ranges = match table_family {
        ServiceTable::Ip(Family::V4) | ServiceTable::Arp => ["10.0.0.0/8", "10.96.0.0/13"],
        ServiceTable::Ip(Family::V6) | ServiceTable::Bridge => ["fd00::/64", "fd00::/61"],
    };
    let ranges = ranges.map(|range| range.parse().unwrap()).to_vec();
    let egress = egress.then(|| Egress { kept: ranges.clone(), v6: true });
    let node = NodePlan {
        detection: Detection::new(&detector, &ranges),
        service_ranges: ranges,
        egress: EgressMasquerade::new(egress.as_ref()),
        node_side: NodeSide {
            masquerade_bit: MarkBit::new(20).unwrap(),
            open_forward: true,
            count_connections: true,
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
            .flat_map(|detector| ServiceTable::ALL.map(|table_family| (detector, table_family)))
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

/// With the backend ipvs, cluster IPs are routed to the node. A table that is about to be replaced
/// must not let packets pass to the node's own ports, nor refuse them.
#[test]
fn a_table_that_is_being_replaced_lets_nothing_pass_to_unused_ports() {
    const SERVICE: &str = "10.96.0.10";
    with_addresses_routed_here("10.96.0.10/32", || {
        let own = UdpSocket::bind("0.0.0.0:0").unwrap();
        let to = (SERVICE, own.local_addr().unwrap().port());
        let send = || UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"hi", to);
        let mut table = Table::new(ServiceTable::Ip(Family::V4), TableConfig::default());
        table.known.services = true;
        table.change_routed_addresses(&[ip(SERVICE)].into(), &mut Delta::default());
        let mut keeper = Keeper::new(table.table_family.schema());
        let mut kernel = Kernel::open().unwrap();
        assert!(send().is_ok(), "without rules the node itself answers");
        Keeper::sync(&mut kernel, &mut [(&mut keeper, &mut table)]).unwrap();
        let seen = kernel.observe(keeper.schema()).unwrap();
        let first = table.before_replacing(&seen);
        assert_eq!(first.len(), 1);
        let schema = keeper.schema();
        kernel.write(schema.family, |batch| batch.replace_rules(schema.name, &first)).unwrap();
        assert_eq!(send().unwrap_err().kind(), ErrorKind::PermissionDenied);
        keeper.mark_unknown();
        Keeper::sync(&mut kernel, &mut [(&mut keeper, &mut table)]).unwrap();
        assert_eq!(send().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let seen = kernel.observe(keeper.schema()).unwrap();
        let chains = table.chains();
        assert_eq!(seen.structure(keeper.schema(), &chains), Some(Structure::default()));
    });
}
