//! The reader itself, against what nft's manual says.

use anyhow::Result;

use super::{Arrival, HookFamily, HookVisit, PacketType, ReadFate, ReadPacket, Reader};

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

	set seen {
		typeof meta l4proto . th dport . ip saddr . ip daddr
		size 4096
		flags dynamic,timeout
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
		meta l4proto tcp add @seen { meta l4proto . th dport . ip saddr . ip daddr timeout 900s counter }
		meta l4proto != udp add @seen { meta l4proto . th dport & 0 . ip saddr . ip daddr timeout 900s counter }
		ip daddr 10.9.0.0/16 counter reject with tcp reset
	}

	chain post {
		type nat hook postrouting priority 100; policy accept;
		ct status dnat masquerade fully-random
		meta mark set meta mark & 0xffffbfff
	}
}
"#;

fn fates(to: &str, from: &str, interface: &str) -> Result<Vec<(ReadFate, bool, f64)>> {
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
    let forward = |to: &str| ReadFate::Forward(to.parse().unwrap());
    let cases = [
        (
            "goto does not come back: half of the draws miss",
            "10.0.0.1:80",
            "10.3.0.1",
            "eth0",
            vec![
                (forward("10.1.0.1:8080"), true, 0.25),
                (forward("10.1.0.2:8080"), true, 0.25),
                (ReadFate::Untouched, false, 0.5),
            ],
        ),
        (
            "jump comes back, to the next rule",
            "10.0.0.2:80",
            "10.3.0.1",
            "eth0",
            vec![(ReadFate::Drop, false, 1.0)],
        ),
        (
            "another port is no key",
            "10.0.0.1:81",
            "10.3.0.1",
            "eth0",
            vec![(ReadFate::Untouched, false, 1.0)],
        ),
        (
            "a wildcard and a range",
            "10.0.0.2:80",
            "10.2.3.4",
            "veth7",
            vec![(ReadFate::Untouched, false, 1.0)],
        ),
        (
            "a wildcard is not the whole key",
            "10.0.0.2:80",
            "10.3.3.4",
            "veth7",
            vec![(ReadFate::Drop, false, 1.0)],
        ),
        ("a prefix", "10.9.9.9:1", "10.3.0.1", "eth0", vec![(ReadFate::Reject, false, 1.0)]),
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

const FIREWALL: &str = r#"
table ip t {
	map blocks {
		typeof meta protocol . ip saddr : meta priority
		flags interval
		elements = {
			ip . 10.0.0.0/8 : 0000:0007,
			ip . 11.0.0.0/32 : 0001:0000,
		}
	}

	set ranges {
		typeof ip daddr . meta l4proto . th dport . meta priority
		flags interval
		elements = {
			10.1.0.1 . tcp . 80-90 . 0000:0007,
			10.1.0.1 . udp . 53 . 0000:0007,
		}
	}

	chain forward {
		type filter hook forward priority -5; policy accept;
		ct state established,related return
		oifname "veth9" return
		ip saddr 10.7.0.0/16 jump asked
		meta priority set meta protocol . ip saddr map @blocks
		ip daddr . meta l4proto . th dport . meta priority @ranges goto back
		drop
	}

	chain asked {
		meta l4proto 1 return
		drop
	}

	chain back {
		meta priority set none
	}
}

table ip6 t {
	chain forward {
		type filter hook forward priority -5; policy accept;
		icmpv6 type 130-137 return
		meta l4proto 58 ip6 saddr fe80::/10 return
		drop
	}
}

table bridge t {
	set ports {
		typeof oifname
		elements = {
			"veth1",
		}
	}

	chain forward {
		type filter hook forward priority -200; policy accept;
		ip saddr 10.6.0.0/16 drop
		oifname @ports meta pkttype broadcast-multicast meta protocol ip6 drop
	}
}
"#;

/// Whether a packet from `from` passes the forward hook.
fn passes(
    family: HookFamily,
    from: &str,
    change: impl FnOnce(ReadPacket) -> ReadPacket,
) -> Result<bool> {
    let from: std::net::IpAddr = from.parse()?;
    let to = if from.is_ipv4() { "10.1.0.1:80" } else { "[fd00::1]:80" };
    let packet = change(ReadPacket::new(from, to.parse()?, 6));
    let output = packet.output.clone().or(Some("veth1".to_owned()));
    let stop = HookVisit { family, hook: "forward", input: "veth0".to_owned(), output };
    Reader::new(FIREWALL, &[])?.passes(&packet, &[stop])
}

#[test]
fn a_firewalls_rules_are_read_as_nftables_would() -> Result<()> {
    let ip = |from: &str, change: fn(ReadPacket) -> ReadPacket| {
        passes(HookFamily::Inet, from, change).unwrap()
    };
    let as_it_is = |packet| packet;
    let icmpv6 = |icmpv6_type| {
        move |packet| ReadPacket { protocol: 58, icmpv6_type: Some(icmpv6_type), ..packet }
    };
    assert!(ip("10.0.0.9", as_it_is), "in a range of ports and of addresses");
    assert!(ip("10.0.0.9", |packet| ReadPacket { port: 90, ..packet }), "its last port");
    assert!(!ip("10.0.0.9", |packet| ReadPacket { port: 91, ..packet }));
    assert!(
        !ip("10.0.0.9", |packet| ReadPacket { protocol: 1, ..packet }),
        "a checksum is no port"
    );
    assert!(!ip("11.0.0.0", as_it_is), "another number");
    assert!(!ip("12.0.0.0", as_it_is), "no number");
    assert!(ip("12.0.0.0", |packet| ReadPacket { established: true, ..packet }));
    assert!(ip("12.0.0.0", |packet| ReadPacket { output: Some("veth9".into()), ..packet }));
    assert!(!ip("10.7.0.1", as_it_is), "dropped where it was sent to");
    assert!(
        !ip("10.7.0.1", |packet| ReadPacket { protocol: 1, ..packet }),
        "and back to the next rule"
    );
    assert!(passes(HookFamily::Inet, "fd00::9", icmpv6(135))?);
    assert!(!passes(HookFamily::Inet, "fd00::9", icmpv6(138))?);
    assert!(!passes(HookFamily::Inet, "fd00::9", |packet| ReadPacket {
        icmpv6_type: Some(135),
        ..packet
    })?);
    assert!(passes(HookFamily::Inet, "fe80::9", icmpv6(138))?);
    let frame = |from: &str, kind| {
        passes(HookFamily::Bridge, from, |packet| ReadPacket { packet_type: Some(kind), ..packet })
            .unwrap()
    };
    assert!(!frame("fd00::9", PacketType::Multicast) && frame("fd00::9", PacketType::Other));
    assert!(frame("10.0.0.9", PacketType::Broadcast), "it carries IPv4");
    assert!(!frame("10.6.0.9", PacketType::Host) && frame("fd00::9", PacketType::Host));
    Ok(())
}

#[test]
fn a_firewalls_rules_are_an_error_where_they_are_not_known() {
    let cases = [
        ("a state", "established,related", "established,untracked"),
        ("a header of another version", "ip saddr 10.7.0.0/16", "ip6 saddr fd00::/8"),
        (
            "ranges that overlap",
            "tcp . 80-90 . 0000:0007,",
            "tcp . 80-90 . 0000:0007,\n10.1.0.1 . tcp . 90-91 . 0000:0007,",
        ),
        ("a range that goes backwards", "80-90", "90-80"),
        ("a kind of frame", "broadcast-multicast", "broadcast-loopback"),
    ];
    Reader::new(FIREWALL, &[]).unwrap();
    for (name, of, instead) in cases {
        assert!(FIREWALL.contains(of), "{name}: {of}");
        let read = Reader::new(&FIREWALL.replacen(of, instead, 1), &[]);
        assert!(read.is_err(), "{name} is read");
    }
    let unknown = FIREWALL.replacen("\t\tmeta priority set none\n", "", 1);
    let packet = ReadPacket::new([10, 0, 0, 9].into(), "10.1.0.1:80".parse().unwrap(), 6);
    let stop = || HookVisit {
        family: HookFamily::Inet,
        hook: "forward",
        input: "veth0".to_owned(),
        output: Some("veth1".to_owned()),
    };
    let left = Reader::new(&unknown, &[]).unwrap().passes(&packet, &[stop()]);
    assert!(left.is_err(), "a packet that does not leave as it came");
    let nowhere = HookVisit { output: None, ..stop() };
    assert!(Reader::new(FIREWALL, &[]).unwrap().passes(&packet, &[nowhere]).is_err());
}
