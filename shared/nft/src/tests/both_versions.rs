//! A table of the family `inet`.

use denizen_packet::Family;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{alone, rule};
use crate::*;

/// A table of both versions: what is asked of addresses is asked of their version alone.
#[test]
fn a_table_of_both_versions_redirects() {
    alone(|kernel| {
        let sets = Vec::new();
        let schema =
            Schema { family: TableFamily::Inet, name: "some", comment: "for a test", sets };
        let tcp = || Statement::Equals(Field::Protocol, Key::EMPTY.byte(6));
        let to = |port| rule([tcp(), Statement::Counter, Statement::Redirect(port)]);
        let user = Statement::Equals(Field::SocketUser, Key::EMPTY.number(2102));
        let group = Statement::NotEquals(Field::SocketGroup, Key::EMPTY.number(7));
        let of = |version, address, prefix| {
            let within = Statement::Within(Field::Destination(version), address, prefix);
            rule([within, Statement::Verdict(Verdict::Return)])
        };
        let rules = vec![
            rule([user, group, Statement::Counter, Statement::Verdict(Verdict::Return)]),
            rule([Statement::is_of(Family::V6), Statement::Verdict(Verdict::Return)]),
            of(Family::V4, Ipv4Addr::new(10, 0, 0, 0).into(), 9),
            of(Family::V6, Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), 16),
            to(4140),
        ];
        let (kind, hook) = (ChainKind::Nat, Hook::Output);
        let base = Some(BaseChain { kind, hook, priority: -110 });
        let chain = Chain { name: "outbound".into(), base, why: "a chain", rules };
        let chains = vec![chain];
        kernel
            .write(TableFamily::Inet, |batch| batch.replace_table(false, &schema, &chains))
            .unwrap();
        let seen = kernel.observe(&schema).unwrap();
        assert_eq!(seen.structure(&schema, &chains), Some(Structure::default()));
        let listed = kernel.rules(TableFamily::Inet, schema.name, None, |seen| {
            let nth = chains[0].rules.iter().position(|rule| seen.does(TableFamily::Inet, rule));
            Some((nth, seen.text()))
        });
        let texts = [
            "meta skuid 2102 meta skgid != 7 return",
            "meta nfproto ipv6 return",
            "meta nfproto ipv4 ip daddr & 255.128.0.0 10.0.0.0 return",
            "meta nfproto ipv6 ip6 daddr fd00::/16 return",
            "meta l4proto tcp redirect to :4140",
        ];
        let texts = texts.iter().enumerate().map(|(n, text)| (Some(n), (*text).to_owned()));
        assert_eq!(listed.unwrap(), texts.collect::<Vec<_>>());
    });
}
