//! What stays of the tables of the backend ipvs, in a kernel.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use crate::nftables::name::ServiceTable;
use crate::nftables::table::Table;
use crate::nftables::table_config::TableConfig;
use crate::nftables::tests::with_addresses_routed_here;
use crate::nftables::{Nftables, only_refuse};
use denizen_fixture::ip;
use denizen_model::Family;
use denizen_nft::{Delta, Keeper, Kernel};

const ROUTED: &str = "10.96.0.10";
/// A cluster IP at which a program of the node listens, a DNS cache for example.
const LISTENED: &str = "10.96.0.53";

/// Why the node's own socket gets nothing from a new client at this address; `None` if it does.
fn refusal(own: &UdpSocket, at: &str) -> Option<ErrorKind> {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect((at, own.local_addr().unwrap().port())).unwrap();
    client.send(b"hi").unwrap();
    own.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    if own.recv_from(&mut [0; 2]).is_ok() {
        return None;
    }
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.recv(&mut [0; 2]).err().map(|error| error.kind())
}

#[test]
fn what_is_new_to_a_virtual_server_is_refused_and_nothing_else() {
    with_addresses_routed_here("10.96.0.0/24", || {
        let own = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut kernel = Kernel::open().unwrap();
        let mut only_refuse = || only_refuse(&mut kernel, &[ip(ROUTED)].into()).unwrap();
        assert_eq!(refusal(&own, ROUTED), None, "without rules the node itself answers");
        only_refuse();
        assert_eq!(refusal(&own, ROUTED), Some(ErrorKind::ConnectionRefused), "without a table");
        assert_eq!(refusal(&own, LISTENED), None, "without a table");

        let mut table = Table::new(ServiceTable::Ip(Family::V4), TableConfig::default());
        table.change_routed_addresses(&[ip(ROUTED), ip(LISTENED)].into(), &mut Delta::default());
        let mut other = Kernel::open().unwrap();
        table.known.services = true;
        let mut keeper = Keeper::new(table.table_family.schema());
        Keeper::sync(&mut other, &mut [(&mut keeper, &mut table)]).unwrap();
        // Again: what one that was killed has done is no hindrance.
        for _ in 0..2 {
            only_refuse();
            assert_eq!(refusal(&own, ROUTED), Some(ErrorKind::ConnectionRefused));
            assert_eq!(refusal(&own, LISTENED), None);
        }
        assert_eq!(Nftables::remove_all_but_arp(&mut other).unwrap(), 1);
        assert_eq!(refusal(&own, ROUTED), None);
    });
}
