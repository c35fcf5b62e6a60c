//! What services with session affinity leave behind, and whose clients are remembered apart.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::super::element::protocol_and_number;
use super::super::name::{ServiceSet, ServiceTable};
use super::super::table::Table;
use super::super::table_config::TableConfig;
use super::slots::{frontend, key};
use super::with_addresses_routed_here;
use denizen_model::{Family, ServiceName, SessionAffinity};
use denizen_nft::{Content, Delta, Element, Keeper, Kernel, Structure, Value, read_endpoint};
use denizen_plan::{Endpoint, Endpoints, Frontend, FrontendAddress, FrontendKey, Outcome};

/// Cluster IPs of one family.
fn cluster_ips(family: Family) -> [&'static str; 2] {
    match family {
        Family::V4 => ["10.96.0.10", "10.96.0.11"],
        Family::V6 => ["fd00:96::10", "fd00:96::11"],
    }
}

/// A frontend that remembers its clients, of three endpoints, one of them on this node.
fn sticky(key: FrontendKey, seconds: u32) -> Frontend {
    let address = |n: u16| match key.family() {
        Family::V4 => SocketAddr::from(([10, 0, 0, n as u8], 8080)),
        Family::V6 => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, n], 8080)),
    };
    let endpoint = |n| Endpoint { address: address(n), local: n == 1 };
    let to = |all: &[u16]| {
        Outcome::Forward(Endpoints::new(all.iter().copied().map(endpoint).collect()).unwrap())
    };
    let affinity = SessionAffinity::ClientIp { seconds };
    Frontend { affinity, outside: Some(to(&[1])), ..frontend(key, to(&[1, 2, 3])) }
}

fn keys(family: Family) -> [FrontendKey; 2] {
    let at_ip = key(cluster_ips(family)[0]);
    [at_ip, FrontendKey { address: FrontendAddress::Node(family), ..at_ip }]
}

fn table(family: Family) -> Table {
    let mut table = Table::new(ServiceTable::Ip(family), TableConfig::default());
    table.known.services = true;
    table
}

fn affinity_chains(table: &Table) -> usize {
    table.chains().iter().filter(|chain| chain.name.contains("affinity")).count()
}

/// Anybody who may change one Service may choose each of 86,400 time-outs.
#[test]
fn a_time_out_that_no_service_has_any_more_leaves_no_chains() {
    for family in Family::BOTH {
        with_addresses_routed_here("10.96.0.10/32", move || {
            let mut table = table(family);
            let mut keeper = Keeper::new(table.table_family.schema());
            let mut kernel = Kernel::open().unwrap();
            let mut program = |table: &mut Table, seconds: Option<u32>| {
                for key in keys(family) {
                    let wanted = seconds.map(|seconds| sticky(key, seconds));
                    keeper.note(|delta| table.change_frontend(key, wanted.as_ref(), delta));
                }
                let done = Keeper::sync(&mut kernel, &mut [(&mut keeper, table)]).unwrap();
                let seen = kernel.observe(keeper.schema()).unwrap();
                let differs = seen.structure(keeper.schema(), &table.chains());
                assert_eq!(differs, Some(Structure::default()), "{family}, {seconds:?}");
                done
            };
            program(&mut table, Some(1));
            let (all, of_affinity) = (table.chains().len(), affinity_chains(&table));
            assert!(of_affinity > 0);
            for seconds in 2..30 {
                let repaired = program(&mut table, Some(seconds));
                assert!(repaired.is_none(), "{family}, {seconds}: {repaired:?}");
                assert_eq!(table.chains().len(), all, "{family}, {seconds}");
            }
            assert!(program(&mut table, None).is_none());
            assert_eq!((affinity_chains(&table), table.chains().len()), (0, all - of_affinity));
        });
    }
}

/// The class changes hands: one service leaves it, and another takes it in the same change.
#[test]
fn a_class_stays_while_any_service_uses_it() {
    for family in Family::BOTH {
        let [first, second] = cluster_ips(family).map(key);
        let mut table = table(family);
        let mut change = |key, wanted: Option<Frontend>, delta: &mut Delta| {
            table.change_frontend(key, wanted.as_ref(), delta);
            affinity_chains(&table)
        };
        let chains = change(first, Some(sticky(first, 300)), &mut Delta::default());
        let mut delta = Delta::default();
        change(first, None, &mut delta);
        assert_eq!(delta.left_over.len(), chains, "{family}");
        assert_eq!(change(second, Some(sticky(second, 300)), &mut delta), chains);
        assert!(delta.chains.is_empty() && delta.left_over.is_empty(), "{family}: {delta:?}");
        change(first, Some(sticky(first, 300)), &mut Delta::default());
        let mut delta = Delta::default();
        assert_eq!(change(second, None, &mut delta), chains);
        assert!(delta.left_over.is_empty(), "{family}: {delta:?}");
    }
}

/// A service of two ports whose names are longer than a comment.
fn long_names(family: Family) -> [Frontend; 2] {
    let ports = ["http", "admin"].into_iter().zip(cluster_ips(family));
    let ports = ports.map(|(port, address)| {
        let mut made = sticky(key(address), 300);
        made.service_port.service = ServiceName::new(&"n".repeat(63), &"s".repeat(63));
        made.service_port.port = port.into();
        made
    });
    ports.collect::<Vec<_>>().try_into().unwrap()
}

/// The number of each endpoint of a frontend, as the kernel gets it.
fn numbered(table: &mut Table, frontend: &Frontend) -> BTreeMap<u32, Element> {
    let mut delta = Delta::default();
    table.change_frontend(frontend.key, Some(frontend), &mut delta);
    let set = ServiceSet::AffinityEndpoints.declared(table.table_family);
    let of_set = delta.add.into_iter().filter(|element| element.set == set.id);
    let family = frontend.key.family();
    of_set
        .map(|element| (protocol_and_number(family, &set, &element.key).unwrap().1, element))
        .collect()
}

#[test]
fn ports_of_one_service_are_remembered_apart_however_long_the_names_are() {
    for family in Family::BOTH {
        let [http, admin] = long_names(family);
        let mut before = table(family);
        let [of_http, of_admin] = [&http, &admin].map(|port| numbered(&mut before, port));
        assert_eq!((of_http.len(), of_admin.len()), (3, 3));
        assert!(of_http.keys().all(|number| !of_admin.contains_key(number)), "{of_http:?}");
        // A restarted agent has only what the kernel has.
        let mut after = table(family);
        for (number, element) in of_http.iter().chain(&of_admin) {
            let Value::Data(data) = &element.value else { panic!("{element:?}") };
            let endpoint = read_endpoint(family, data).unwrap();
            let owner = (element.comment.clone().unwrap(), http.key.protocol);
            after.restore_number(owner, endpoint.into(), *number);
        }
        assert_eq!([&admin, &http].map(|port| numbered(&mut after, port)), [of_admin, of_http]);
    }
}

#[test]
fn a_service_port_that_comes_and_goes_never_gets_anothers_number() {
    for family in Family::BOTH {
        let [living, other] = cluster_ips(family).map(|address| sticky(key(address), 300));
        let mut table = table(family);
        let of_living = numbered(&mut table, &living);
        for n in 0..70_000 {
            let mut other = other.clone();
            other.service_port.port = n.to_string().into();
            let of_other = numbered(&mut table, &other);
            assert!(of_other.keys().all(|number| !of_living.contains_key(number)), "{n}");
            table.change_frontend(other.key, None, &mut Delta::default());
        }
    }
}
