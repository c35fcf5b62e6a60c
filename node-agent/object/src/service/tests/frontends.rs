//! External IPs, load balancers and ports.

use serde_json::{Value, json};

use super::{converted, shown};

#[test]
fn external_addresses() {
    let ingress = |entries: Value| json!({"status": {"loadBalancer": {"ingress": entries}}});
    let cases = [
        ("none", json!({}), "", "", 0),
        (
            "external IPs",
            json!({"spec": {"externalIPs": ["192.168.099.022", "fd00::9"]}}),
            "192.168.99.22 fd00::9",
            "",
            0,
        ),
        ("null", json!({"spec": {"externalIPs": null}, "status": null}), "", "", 0),
        (
            "one of them malformed",
            json!({"spec": {"externalIPs": ["1.2.3.4", "web.example", "1.2.3.5"]}}),
            "1.2.3.4 1.2.3.5",
            "",
            1,
        ),
        ("one twice", json!({"spec": {"externalIPs": ["1.2.3.4", "1.2.3.04"]}}), "1.2.3.4", "", 0),
        (
            "addresses of the node itself",
            json!({"spec": {"externalIPs": ["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1"]}}),
            "",
            "",
            4,
        ),
        (
            "a load balancer's addresses of the node itself",
            ingress(json!([
                {"ip": "127.0.0.1"}, {"ip": "::1"}, {"ip": "0.0.0.0"}, {"ip": "169.254.169.254"},
                {"ip": "fe80::1"}, {"ip": "::ffff:127.0.0.1"}
            ])),
            "",
            "",
            6,
        ),
        (
            "a load balancer's that are many hosts'",
            ingress(json!([
                {"ip": "224.0.0.5"}, {"ip": "239.1.1.1"}, {"ip": "ff0e::1"},
                {"ip": "255.255.255.255"}
            ])),
            "",
            "",
            4,
        ),
        (
            "IPv4-mapped",
            json!({"spec": {"externalIPs": ["::ffff:1.2.3.4", "1.2.3.4"]}}),
            "1.2.3.4",
            "",
            0,
        ),
        (
            "a load balancer's",
            ingress(json!([{"ip": "1.2.3.004"}, {"ip": "fd00::4"}])),
            "",
            "1.2.3.4 fd00::4",
            0,
        ),
        (
            "host names are ignored",
            ingress(json!([{"hostname": "lb.example"}, {"ip": ""}])),
            "",
            "",
            0,
        ),
        ("ipMode VIP", ingress(json!([{"ip": "1.2.3.4", "ipMode": "VIP"}])), "", "1.2.3.4", 0),
        ("ipMode Proxy", ingress(json!([{"ip": "1.2.3.4", "ipMode": "Proxy"}])), "", "", 0),
        (
            "an ipMode of the future",
            ingress(json!([{"ip": "1.2.3.4", "ipMode": "Tunnel"}])),
            "",
            "",
            0,
        ),
        (
            "ingress ports are ignored",
            ingress(json!([{"ip": "1.2.3.4", "ports": [{"port": 1, "error": "x"}]}])),
            "",
            "1.2.3.4",
            0,
        ),
        ("malformed ingress", ingress(json!([{"ip": "lb"}, {"ip": "1.2.3.4"}])), "", "1.2.3.4", 1),
        (
            "loadBalancerIP is ignored",
            json!({"spec": {"loadBalancerIP": "1.2.3.4", "loadBalancerClass": "x"}}),
            "",
            "",
            0,
        ),
    ];
    for (name, changes, external, balancer, warnings) in cases {
        let (service, warned) = converted(&changes);
        let service = service.unwrap();
        assert_eq!(shown(&service.external_ips), external, "{name}");
        assert_eq!(shown(&service.load_balancer_ips), balancer, "{name}");
        let proxied = if name.starts_with("ipMode Proxy") || name.contains("future") {
            "1.2.3.4"
        } else {
            ""
        };
        assert_eq!(shown(&service.proxied_ips), proxied, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}

#[test]
fn source_ranges() {
    let cases = [
        ("none", json!(null), "", false),
        ("empty", json!([]), "", false),
        (
            "white space and zeros",
            json!([" 203.0.113.0/25", "203.0.113.128/025\t"]),
            "203.0.113.0/25 203.0.113.128/25",
            false,
        ),
        ("both families", json!(["10.0.0.0/8", "fd00::/8"]), "10.0.0.0/8 fd00::/8", false),
        ("everybody", json!(["0.0.0.0/0", "::/0"]), "0.0.0.0/0 ::/0", false),
        ("host bits", json!(["10.1.2.3/8"]), "10.0.0.0/8", false),
        ("one malformed", json!(["10.0.0.0/8", "10.0.0.0"]), "10.0.0.0/8", true),
        ("all malformed", json!(["office"]), "", true),
        (
            "a range of IPv4-mapped addresses is one of IPv4",
            json!(["::ffff:10.0.0.0/104"]),
            "10.0.0.0/8",
            false,
        ),
        (
            "a range that is only partly of IPv4-mapped addresses",
            json!(["::ffff:0:0/90"]),
            "",
            true,
        ),
    ];
    for (name, ranges, expected, unreadable) in cases {
        let annotation = "service.beta.kubernetes.io/load-balancer-source-ranges";
        let (service, warned) = converted(&json!({
            "metadata": {"annotations": {annotation: "9.9.9.9/32"}},
            "spec": {"loadBalancerSourceRanges": ranges},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
        }));
        let service = service.unwrap();
        assert_eq!(shown(&service.source_ranges.ranges), expected, "{name}");
        assert_eq!(service.source_ranges.unreadable, unreadable, "{name}");
        assert_eq!(shown(&service.load_balancer_ips), "1.2.3.4", "{name}");
        assert_eq!(warned.len(), usize::from(unreadable), "{name}: {warned:?}");
    }
}

#[test]
fn ports() {
    let cases = [
        ("none", json!(null), vec![], 0),
        ("unnamed", json!([{"port": 80}]), vec![" 80/tcp"], 0),
        (
            "the target port is not read",
            json!([{"port": 80, "targetPort": "http"}, ]),
            vec![" 80/tcp"],
            0,
        ),
        (
            "all protocols on one number",
            json!([
            {"name": "a", "port": 53, "protocol": "TCP"},
            {"name": "b", "port": 53, "protocol": "UDP", "appProtocol": "dns"},
            {"name": "c", "port": 53, "protocol": "SCTP"}]),
            vec!["a 53/tcp", "b 53/udp", "c 53/sctp"],
            0,
        ),
        ("empty protocol", json!([{"port": 80, "protocol": ""}]), vec![" 80/tcp"], 0),
        ("node port", json!([{"port": 80, "nodePort": 30080}]), vec![" 80/tcp 30080"], 0),
        ("node port 0", json!([{"port": 80, "nodePort": 0}]), vec![" 80/tcp"], 0),
        ("malformed node port", json!([{"port": 80, "nodePort": 70000}]), vec![" 80/tcp"], 1),
        ("no number", json!([{"name": "a"}, {"name": "b", "port": 81}]), vec!["b 81/tcp"], 1),
        ("number 0", json!([{"port": 0}]), vec![], 1),
        ("number too large", json!([{"port": 65536}]), vec![], 1),
        ("negative number", json!([{"port": -1}]), vec![], 1),
        (
            "other protocol",
            json!([{"name": "a", "port": 1, "protocol": "ICMP"}, {"name": "b", "port": 2}]),
            vec!["b 2/tcp"],
            1,
        ),
        (
            "a number twice",
            json!([{"name": "a", "port": 1}, {"name": "b", "port": 1}]),
            vec!["a 1/tcp"],
            1,
        ),
        (
            "a name twice",
            json!([{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
            vec!["a 1/tcp"],
            1,
        ),
        (
            "a name in two protocols",
            json!([{"name": "a", "port": 1}, {"name": "a", "port": 1, "protocol": "UDP"}]),
            vec!["a 1/tcp", "a 1/udp"],
            0,
        ),
    ];
    for (name, ports, expected, warnings) in cases {
        let (service, warned) = converted(&json!({"spec": {"ports": ports}}));
        let shown: Vec<String> = service
            .unwrap()
            .ports
            .iter()
            .map(|port| {
                let node_port =
                    port.node_port.map(|number| format!(" {number}")).unwrap_or_default();
                format!("{} {}/{}{node_port}", port.name, port.port, port.protocol)
            })
            .collect();
        assert_eq!(shown, expected, "{name}");
        assert_eq!(warned.len(), warnings, "{name}: {warned:?}");
    }
}
