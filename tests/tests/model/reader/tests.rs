//! The reader itself, against what nft's manual says.

use anyhow::Result;

use super::{Arrival, Fate, Reader};

const RULES: &str = r#"
table ip t {
	map frontends {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = {
			10.0.0.1 . tcp . 80 comment "a: b, c" : goto lb,
			10.0.0.2 . tcp . 80 : jump lb,
		}
	}

	map ends {
		typeof ip daddr . meta l4proto . th dport . numgen random mod 65535 : ip daddr . th dport
		elements = {
			10.0.0.1 . tcp . 80 . 0 : 10.1.0.1 . 8080,
			10.0.0.1 . tcp . 80 . 2 : 10.1.0.2 . 8080,
		}
	}

	set names {
		typeof iifname . ip saddr
		flags interval
		elements = {
			"veth*" . 10.2.0.0/16,
		}
	}

	chain lb {
		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @ends
		meta mark set meta mark | 0x00004000
	}

	chain pre {
		type nat hook prerouting priority -100; policy accept;
		iifname . ip saddr @names return
		ip daddr . meta l4proto . th dport vmap @frontends
		meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff drop
		ip daddr 10.9.0.0/16 counter reject with tcp reset
	}

	chain post {
		type nat hook postrouting priority 100; policy accept;
		ct status dnat masquerade fully-random
		meta mark set meta mark & 0xffffbfff
	}
}
"#;

fn fates(to: &str, from: &str, interface: &str) -> Result<Vec<(Fate, bool, f64)>> {
    let arrival = Arrival {
        source: from.parse()?,
        interface: Some(interface.to_owned()),
        port: None,
        destination: to.parse()?,
        protocol: 6,
    };
    let ends = Reader::new(RULES, &[])?.walk(&arrival)?;
    Ok(ends.into_iter().map(|(end, share)| (end.fate, end.masqueraded, share)).collect())
}

#[test]
fn a_packet_goes_where_nftables_would_send_it() -> Result<()> {
    let forward = |to: &str| Fate::Forward(to.parse().unwrap());
    let cases = [
        (
            "goto does not come back: half of the draws miss",
            "10.0.0.1:80",
            "10.3.0.1",
            "eth0",
            vec![
                (forward("10.1.0.1:8080"), true, 0.25),
                (forward("10.1.0.2:8080"), true, 0.25),
                (Fate::Untouched, false, 0.5),
            ],
        ),
        (
            "jump comes back, to the next rule",
            "10.0.0.2:80",
            "10.3.0.1",
            "eth0",
            vec![(Fate::Drop, false, 1.0)],
        ),
        (
            "another port is no key",
            "10.0.0.1:81",
            "10.3.0.1",
            "eth0",
            vec![(Fate::Untouched, false, 1.0)],
        ),
        (
            "a wildcard and a range",
            "10.0.0.2:80",
            "10.2.3.4",
            "veth7",
            vec![(Fate::Untouched, false, 1.0)],
        ),
        (
            "a wildcard is not the whole key",
            "10.0.0.2:80",
            "10.3.3.4",
            "veth7",
            vec![(Fate::Drop, false, 1.0)],
        ),
        ("a prefix", "10.9.9.9:1", "10.3.0.1", "eth0", vec![(Fate::Reject, false, 1.0)]),
    ];
    for (name, to, from, interface, wanted) in cases {
        assert_eq!(fates(to, from, interface)?, wanted, "{name}");
    }
    Ok(())
}

#[test]
fn what_is_not_known_is_an_error() {
    let cases = [
        ("an expression", "ip daddr 10.9.0.0/16", "ip dscp 3"),
        ("a statement", "counter reject", "log reject"),
        ("a type", "inet_service : verdict", "inet_service . gid : verdict"),
        ("a chain that is not there", "goto lb", "goto elsewhere"),
        ("a map that is not there", "map @ends", "map @starts"),
        ("a key of another type", "iifname . ip saddr @names", "ip saddr . ip saddr @names"),
        ("a hook", "hook prerouting", "hook ingress"),
        ("a policy", "-100; policy accept", "-100; policy drop"),
        (
            "words after a verdict",
            "priority -100; policy accept;",
            "priority -100; policy accept; ip saddr",
        ),
        ("one key twice", "10.0.0.2 . tcp", "10.0.0.1 . tcp"),
    ];
    Reader::new(RULES, &[]).unwrap();
    for (name, of, instead) in cases {
        assert!(RULES.contains(of), "{name}: {of}");
        let read = Reader::new(&RULES.replacen(of, instead, 1), &[]);
        assert!(read.is_err(), "{name} is read");
    }
}
