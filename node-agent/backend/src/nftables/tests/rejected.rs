use super::slots::{frontend, key, to};
use crate::nftables::Nftables;
use crate::nftables::lower::lower;
use crate::nftables::name::{ServiceTable, SetName};
use crate::nftables::number::Numbers;
use crate::nftables::rejected::Rejected;
use denizen_fixture::{ip, range};
use denizen_model::Family;
use denizen_nft::{Change, Element, Key, Value};
use denizen_plan::{Frontend, FrontendAddress, FrontendKey};

/// Whatever element of a frontend the kernel rejects, it is known whose it is; others' are not
/// taken for it.
#[test]
fn every_rejected_element_of_a_frontend_is_found() {
    let at_node = FrontendKey { address: FrontendAddress::Node(Family::V4), ..key("10.96.0.10") };
    let table_family = ServiceTable::Ip(Family::V4);
    let no = std::io::Error::other("no");
    let rejected = |element: &Element| {
        Rejected::new(table_family, &table_family.schema(), Change::Addition(element), &no)
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
            let mut backend = Nftables::offline();
            let rejected = rejected(element);
            let tables = backend.tables.iter_mut();
            tables.for_each(|table| table.rejected = vec![rejected.clone()]);
            let of = |key: &FrontendKey| -> usize {
                let tables = backend.tables.iter();
                tables.map(|table| table.rejected_at(key).len()).sum()
            };
            assert_eq!(of(&own), 1, "{element:?}");
            assert_eq!(of(&key("10.96.0.11")), 0, "{element:?}");
        }
    }
    let pod = Element {
        set: SetName::ClusterIps.id(),
        key: Key::EMPTY.address(ip("6.0.0.80")),
        value: Value::Member,
        comment: None,
    };
    assert_eq!(rejected(&pod).key, None);
}
