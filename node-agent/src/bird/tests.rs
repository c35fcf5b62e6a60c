use std::net::IpAddr;

use super::control::Line;
use super::*;
use crate::fixture::{ip, range};
use crate::model::Labels;

fn config(peer: &str) -> Result<BirdConfig, String> {
    BirdConfig::parse(&format!(
        r#"{{"asn": 64512, "peers": [{{"name": "tor-a", "address": "192.0.2.9", "asn": 65001 {peer}}}]}}"#
    ))
}

fn around() -> Surroundings {
    Surroundings {
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
        (r#", "import": ["fd00::/8"]"#, "peers[0].import: fd00::/8 is not of the family"),
        (r#", "communities": {"pods": []}"#, "peers[0].communities: pods is none of pod-cidr"),
        (r#", "communities": {"pod": ["70000:1"]}"#, "is no community such as 64512:100"),
        (r#"}, {"name": "tor-a", "address": "192.0.2.8", "asn": 1"#, "peers[1].name: tor-a is"),
        (r#"}, {"name": "b", "address": "192.0.2.9", "asn": 1"#, "peers[1].address: 192.0.2.9"),
        (r#"}, {"name": "b", "address": "fe80::1", "asn": 1"#, "fe80::1 is no router's"),
        (r#"}, {"name": "b\"c", "address": "192.0.2.8", "asn": 1"#, "is not up to 40 letters"),
    ];
    for (written, said) in cases {
        let error = config(written).expect_err(written);
        assert!(error.contains(said), "{written}: {error}");
    }
    for (text, said) in [
        (r#"{"asn": 0}"#, "asn: it must not be 0"),
        (r#"{"asn": 1, "holdTime": "2s"}"#, "holdTime: it must be"),
        (r#"{"asn": 1, "holdTime": "soon"}"#, "holdTime: \"soon\" is not a duration"),
        (r#"{"asn": 1, "gracefulRestart": "2h"}"#, "gracefulRestart: the longest time"),
    ] {
        let error = BirdConfig::parse(text).expect_err(text);
        assert!(error.contains(said), "{text}: {error}");
    }
    for bad in ["", "a\"b", "a\nb", &"x".repeat(81)] {
        assert!(password(bad).is_err(), "{bad:?}");
    }
    assert_eq!(password("a b\\c\n"), Ok("a b\\c"));
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
    assert!(plain.contains("  password \"se cret\";\n") && !plain.contains("protocol bfd"));
    let far =
        r#", "multihop": 3, "bfd": true, "ttlSecurity": true, "allowLocalAs": 2, "port": 1790"#;
    let far = text(&config(far).unwrap());
    let options = "  local 192.0.2.1 as 64512;\n  neighbor 192.0.2.9 port 1790 as 65001;\n  multihop 3;\n  hold time 30;\n  graceful restart off;\n  bfd on;\n  ttl security on;\n  allow local as 2;\n";
    assert!(far.contains(options) && far.contains("protocol bfd {}"), "{far}");
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
    let alone = Surroundings { addresses: Vec::new(), ..around() };
    let rendered = render(&config, &[(&config.peers[0], None)], &alone);
    assert_eq!(rendered.problems.len(), 2, "{:?}", rendered.problems);
    assert!(!rendered.text.contains("protocol bgp"), "{}", rendered.text);
}

/// As BIRD 2.0.12 answers, without its codes.
#[test]
fn sessions_are_read() {
    let shown = "Name       Proto      Table      State  Since         Info\n\
        device1    Device     ---        up     2026-11-23 23:19:17  \n\
        peer:tor-a BGP        ---        up     2026-11-23 23:19:17  Established   \n  \
          BGP state:          Established\n    Neighbor address: 192.0.2.2\n  Channel ipv4\n    \
          Import limit:   1 [HIT]\n      Action:       block\n    \
          Routes:         1 imported, 2 filtered, 4 exported, 1 preferred\n\
        node:2001:db8::7 BGP        ---        start  2026-11-23 23:19:18  Connect       \n  \
          BGP state:          Connect\n  Last error:       Socket: Connection refused\n";
    let lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    let [up, down] = <[Session; 2]>::try_from(sessions(&lines)).unwrap();
    assert_eq!((up.peer.as_str(), up.exported, up.imported), ("peer:tor-a", 4, 1));
    assert!(up.is_up() && up.is_limited && up.last_error.is_none());
    assert_eq!(up.since, "2026-11-23 23:19:17");
    assert_eq!((down.peer.as_str(), down.is_up()), ("node:2001:db8::7", false));
    assert_eq!(down.last_error.as_deref(), Some("Socket: Connection refused"));
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
