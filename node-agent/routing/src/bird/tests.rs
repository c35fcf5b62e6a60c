use std::net::IpAddr;

use super::control::Line;
use super::*;
use denizen_fixture::{ip, range};
use denizen_model::Labels;

fn config(peer: &str) -> Result<BirdConfig, String> {
    BirdConfig::parse(&format!(
        r#"{{"asn": 64512, "peers": [{{"name": "tor-a", "address": "192.0.2.9", "asn": 65001 {peer}}}]}}"#
    ))
}

fn around() -> RenderInputs {
    RenderInputs {
        table: 219,
        node: "node-1".into(),
        addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        protected: [range("10.1.1.0/24"), range("192.0.2.0/24"), range("fd01::/64")].into(),
        neighbours: [(ip("2001:db8::2"), [range("fd01:2::/64")].into())].into(),
    }
}

fn text(config: &BirdConfig) -> String {
    let peers: Vec<_> = config.peers.iter().map(|peer| (peer, Some("se cret".into()))).collect();
    let rendered = render(config, &peers, &around());
    assert_eq!(rendered.problems, Vec::<String>::new());
    rendered.text
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        (r#", "nmae": 1"#, "peers[0]"),
        (r#", "multihop": 256"#, "peers[0].multihop"),
        (r#", "port": 0"#, "peers[0]: asn and port must not be 0"),
        (r#", "rrClient": true"#, "peers[0].rrClient"),
        (r#", "localAddress": "2001:db8::1""#, "peers[0].localAddress: 2001:db8::1 cannot reach"),
        (r#", "import": "all""#, "\"all\" is not none, default or a CIDR"),
        (r#", "import": ["0.0.0.0/0"]"#, "write \"default\" for the default route"),
        (r#", "import": ["fd00::/8"]"#, "peers[0].import: no IPv6 routes are exchanged with"),
        (r#", "families": ["ipv4", "ipv6"]"#, "peers[0].families: IPv6 routes need a peer's IPv6"),
        (r#", "multihop": 2, "import": "default""#, "peers[0].import: with multihop, nothing is"),
        (r#", "families": ["ip"]"#, "\"ip\" is neither ipv4 nor ipv6"),
        (r#", "families": []"#, "peers[0].families: name at least one"),
        (r#", "communities": {"pods": []}"#, "peers[0].communities: pods is none of pod-cidr"),
        (r#", "communities": {"pod": ["70000:1"]}"#, "is no community such as 64512:100"),
        (r#"}, {"name": "tor-a", "address": "192.0.2.8", "asn": 1"#, "peers[1].name: tor-a is"),
        (r#"}, {"name": "b", "address": "192.0.2.9", "asn": 1"#, "peers[1].address: 192.0.2.9"),
        (r#"}, {"name": "b\"c", "address": "192.0.2.8", "asn": 1"#, "is not up to 40 letters"),
    ];
    for (written, problem) in cases {
        let error = config(written).expect_err(written);
        assert!(error.contains(problem), "{written}: {error}");
    }
    addresses_are_checked();
    for (text, problem) in [
        (r#"{"asn": 0}"#, "asn: it must not be 0"),
        (r#"{"asn": 1, "holdTime": "2s"}"#, "holdTime: it must be"),
        (r#"{"asn": 1, "holdTime": "soon"}"#, "holdTime: \"soon\" is not a duration"),
        (r#"{"asn": 1, "gracefulRestart": "2h"}"#, "gracefulRestart: the longest time"),
        (r#"{"asn": 1, "drainPrepend": 11}"#, "drainPrepend: the most is 10"),
    ] {
        let error = BirdConfig::parse(text).expect_err(text);
        assert!(error.contains(problem), "{text}: {error}");
    }
    for bad in ["", "a\"b", "a\nb", &"x".repeat(81)] {
        assert!(password(bad).is_err(), "{bad:?}");
    }
    assert_eq!(password("a b\\c\n"), Ok("a b\\c"));
}

fn addresses_are_checked() {
    let cases = [
        ("fe80::1", "", "peers[1].address: fe80::1 is link-local: add its interface, as in"),
        ("fe80::1%", "", "peers[1].address: fe80::1%: no interface can have the name \"\""),
        ("fe80::1%e\\\"0", "", "no interface can have the name"),
        ("fe80::1%sixteen-bytes-xx", "", "no interface can have the name"),
        ("2001:db8::9%eth0", "", "only a link-local address has an interface"),
        ("192.0.2.8%eth0", "", "only a link-local address has an interface"),
        ("169.254.0.1", "", "169.254.0.1 is no router's"),
        ("::ffff:192.0.2.8", "", "is no router's"),
        ("tor-b", "", "\"tor-b\" is no address such as 192.0.2.1 or fe80::1%eth0"),
        ("fe80::1%eth0", r#", "multihop": 2"#, "peers[1].multihop: fe80::1 is link-local"),
        ("fe80::1%eth0", r#", "localAddress": "2001:db8::1""#, "cannot reach fe80::1"),
        ("2001:db8::9", r#", "localAddress": "fe80::2""#, "fe80::2 cannot reach 2001:db8::9"),
        ("fe80::1%eth0", r#", "import": ["10.0.0.0/8"]"#, "no IPv4 routes are exchanged with fe80"),
    ];
    for (address, more, problem) in cases {
        let peer = format!(r#"}}, {{"name": "b", "address": "{address}", "asn": 1 {more}"#);
        let error = config(&peer).expect_err(&peer);
        assert!(error.contains(problem), "{peer}: {error}");
    }
    // One address on two links is two routers.
    let fabric = ["eth0", "eth1"].map(|interface| {
        format!(r#"{{"name": "{interface}", "address": "fe80::1%{interface}", "asn": 1}}"#)
    });
    BirdConfig::parse(&format!(r#"{{"asn": 1, "peers": [{}]}}"#, fabric.join(","))).unwrap();
}

#[test]
fn a_peer_is_that_of_nodes_with_its_labels() {
    let config = config(r#", "nodeSelector": {"rack": "a"}"#).unwrap();
    let count = |labels: &[(&str, &str)], own: &[IpAddr]| {
        config.peers_of(&Labels::from_iter(labels.iter().copied()), own).count()
    };
    assert_eq!(count(&[("rack", "a"), ("zone", "b")], &[]), 1);
    assert_eq!((count(&[("rack", "b")], &[]), count(&[], &[])), (0, 0));
    assert_eq!(count(&[("rack", "a")], &[ip("192.0.2.9")]), 0, "its own address");
}

/// What a hostile peer could do is in these lines.
#[test]
fn filters_and_limits_of_a_session() {
    let none = text(&config("").unwrap());
    let import = "import filter {\n      reject;\n    };";
    assert!(none.contains(import), "{none}");
    assert!(none.contains("import limit 1000 action block;"), "{none}");
    assert!(none.contains("define own4 = [ 0.0.0.0/8+, 127.0.0.0/8+, 169.254.0.0/16+, 224.0.0.0/3+, 10.1.1.0/24+, 192.0.2.0/24+ ];"));
    assert!(
        none.contains(
            "import limit 1 action block; next hop self;\n    import where net ~ [ fd01:2::/64 ];"
        ),
        "{none}"
    );
    let some = text(&config(r#", "import": ["default", "10.9.1.2/16"]"#).unwrap());
    let filter = "      if net = 0.0.0.0/0 && taken() then accept;\n      if net ~ own4 then reject;\n      if net ~ [ 10.9.0.0/16+ ] && taken() then accept;\n      reject;\n";
    assert!(some.contains(filter), "{some}");
    let communities = r#", "communities": {"load-balancer-ip": ["64512:100", "1:2:3"]}"#;
    let text = text(&config(communities).unwrap());
    let line = "if krt_metric = 105 || krt_metric = 205 then { bgp_community.add((64512,100)); bgp_large_community.add((1,2,3)); }";
    assert!(text.contains(line), "{text}");
}

#[test]
fn options_of_a_session() {
    let plain = text(&config("").unwrap());
    assert!(
        plain.contains("  local as 64512;\n  neighbor 192.0.2.9 port 179 as 65001;\n  direct;")
    );
    assert!(
        plain.contains("  graceful restart time 60;\n") && plain.contains("router id 192.0.2.1;")
    );
    // That with a node of the mesh as well.
    assert_eq!(plain.matches("  error wait time 5, 60;\n  graceful restart on;\n").count(), 2);
    assert!(plain.contains("  password \"se cret\";\n") && !plain.contains("protocol bfd"));
    let far =
        r#", "multihop": 3, "bfd": true, "ttlSecurity": true, "allowLocalAs": 2, "port": 1790"#;
    let far = text(&config(far).unwrap());
    let options = "  local 192.0.2.1 as 64512;\n  neighbor 192.0.2.9 port 1790 as 65001;\n  \
        multihop 3;\n  hold time 30;\n  error wait time 5, 60;\n  graceful restart off;\n  \
        bfd on;\n  ttl security on;\n  allow local as 2;\n";
    assert!(far.contains(options) && far.contains("protocol bfd {}"), "{far}");
    let unnumbered = r#"}, {"name": "b", "address": "fe80::1%eth0.5", "asn": 65001,
        "families": ["ipv4", "ipv6"], "import": ["default", "10.9.0.0/16"]"#;
    let unnumbered = text(&config(unnumbered).unwrap());
    let session = unnumbered.split("'peer:b'").nth(1).unwrap().split("protocol").next().unwrap();
    for part in [
        "neighbor fe80::1 port 179 as 65001;\n  direct;\n  interface \"eth0.5\";\n",
        "  ipv4 {\n    import limit 1000 action block; next hop self; extended next hop on;\n",
        "if net = 0.0.0.0/0 && taken() then accept;\n      if net ~ own4 then reject;\n",
        "  ipv6 {\n    import limit 1000 action block; next hop self;\n",
        "if net = ::/0 && taken() then accept;\n",
    ] {
        assert!(session.contains(part), "{part} in {session}");
    }
    // A reflected route keeps its next hop, and is exported.
    let reflected = BirdConfig::parse(
        r#"{"asn": 1, "peers": [{"name": "a", "address": "192.0.2.9", "asn": 1, "rrClient": true}]}"#,
    );
    let reflected = text(&reflected.unwrap());
    let session = reflected.split("'peer:a'").nth(1).unwrap().split("protocol").next().unwrap();
    assert!(session.contains("if source = RTS_BGP then accept;"), "{session}");
    assert!(!session.contains("next hop self"), "{session}");
    // Nothing is left out in silence.
    let config = config(r#", "multihop": 2"#).unwrap();
    let alone = RenderInputs { addresses: Vec::new(), ..around() };
    let rendered = render(&config, &[(&config.peers[0], None)], &alone);
    assert_eq!(rendered.problems.len(), 2, "{:?}", rendered.problems);
    assert!(!rendered.text.contains("protocol bgp"), "{}", rendered.text);
}

/// In its own autonomous system, a longer path would be taken for a loop.
#[test]
fn a_draining_node_prepends_for_others_alone() {
    let peer = |name: &str, asn: u32, ip: &str| {
        format!(r#"{{"name": "{name}", "address": "{ip}", "asn": {asn}}}"#)
    };
    let peers = [peer("own", 64512, "192.0.2.8"), peer("other", 65001, "192.0.2.9")].join(",");
    let config = format!(r#"{{"asn": 64512, "drainPrepend": 2, "peers": [{peers}]}}"#);
    let text = text(&BirdConfig::parse(&config).unwrap());
    let line = "if krt_metric > 200 then { bgp_path.prepend(64512); bgp_path.prepend(64512); }\n";
    let (before, behind) = text.split_once("'peer:other'").unwrap();
    assert!(behind.contains(line) && !before.contains("prepend"), "{text}");
}

/// As BIRD 2.0.12 answers, without its codes.
#[test]
fn sessions_are_read() {
    let shown = "Name       Proto      Table      State  Since         Info\n\
        device1    Device     ---        up     2026-11-23 23:19:17  \n\
        peer:tor-a BGP        ---        up     2026-11-23 23:19:17  Established   \n  \
          BGP state:          Established\n    Neighbor address: 192.0.2.2\n  Channel ipv4\n    \
          State:          UP\n    Import limit:   1 [HIT]\n      Action:       block\n    \
          Routes:         1 imported, 2 filtered, 4 exported, 1 preferred\n    \
          BGP Next hop:   192.0.2.1\n\
        node:2001:db8::7 BGP        ---        start  2026-11-23 23:19:18  Connect       \n  \
          BGP state:          Connect\n  Last error:       Socket: Connection refused\n";
    let lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    let [up, down] = <[Session; 2]>::try_from(sessions(&lines)).unwrap();
    assert_eq!((up.peer.as_str(), up.exported, up.imported), ("peer:tor-a", 4, 1));
    assert!(up.is_up() && up.is_limited && up.last_error.is_none());
    assert_eq!(up.since, "2026-11-23 23:19:17");
    assert_eq!((down.peer.as_str(), down.is_up()), ("node:2001:db8::7", false));
    assert_eq!(down.last_error.as_deref(), Some("Socket: Connection refused"));
    assert_eq!(up.problem(), None);
    assert!(down.problem().unwrap().starts_with("no BGP session with node:2001:db8::7 Connect"));
}

/// The first peer does not offer IPv4, the second does so without next hops of IPv6.
#[test]
fn families_that_a_peer_does_not_offer_are_named() {
    let session = |name: &str, state: &str, next_hop: &str| {
        format!(
            "{name} BGP        ---        up     2026-11-23 23:19:17  Established   \n  \
               BGP state:          Established\n    Neighbor address: fe80::1%eth0\n  \
             Channel ipv4\n    State:          {state}\n    \
               Routes:         1 imported, 2 exported, 1 preferred\n{next_hop}  \
             Channel ipv6\n    State:          UP\n    \
               Routes:         1 imported, 3 exported, 1 preferred\n    \
               BGP Next hop:   :: fe80::2\n"
        )
    };
    let shown = [
        session("peer:a", "DOWN", ""),
        session("peer:b", "UP", "    BGP Next hop:   ::\n"),
        session("peer:c", "UP", "    BGP Next hop:   :: fe80::2\n"),
    ];
    let lines: Vec<String> = shown.concat().lines().map(str::to_owned).collect();
    let problems: Vec<_> = sessions(&lines).iter().map(Session::problem).collect();
    let problem = |name: &str| {
        format!(
            "no ipv4 routes are exchanged with {name} Established since 2026-11-23 23:19:17, \
             5 exported, 2 imported"
        )
    };
    assert_eq!(problems, [Some(problem("peer:a")), Some(problem("peer:b")), None]);
}

#[test]
fn lines_of_an_answer() {
    let cases = [
        ("1002-peer:a BGP", Line::More("peer:a BGP")),
        (" device1", Line::More("device1")),
        ("   BGP state: Up", Line::More("  BGP state: Up")),
        ("0000 ", Line::Last("")),
        ("0003 Reconfigured", Line::Last("Reconfigured")),
        ("8002 f:41:10 syntax error", Line::Refusal("f:41:10 syntax error")),
        ("9001 syntax error", Line::Refusal("syntax error")),
        ("0016 Access restricted", Line::Refusal("Access restricted")),
        (
            "0006 Reconfiguration ignored, shutting down",
            Line::Refusal("Reconfiguration ignored, shutting down"),
        ),
        ("", Line::More("")),
    ];
    for (line, read) in cases {
        assert_eq!(Line::of(line), read, "{line:?}");
    }
}
