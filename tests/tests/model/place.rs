//! The places and addresses of the random worlds. There are few of each, so that they meet: a
//! node's address is also an external IP, a node port also a service's port, one endpoint is in
//! many slices.

/// This node, and another.
pub const HERE: &str = "node-1";
pub const AWAY: &str = "node-2";

pub const ZONES: [&str; 2] = ["a", "b"];

/// Addresses of one family.
#[derive(Debug)]
pub struct Places {
    pub v4: bool,
    /// The node's own, and the interfaces that they are on.
    pub node: &'static [(&'static str, &'static str)],
    /// Pods of this node behind its bridge.
    pub bridged: &'static [&'static str],
    /// Pods of this node with a veth of their own.
    pub routed: &'static [&'static str],
    /// Pods of other nodes.
    pub remote: &'static [&'static str],
    /// Hosts outside the cluster.
    pub outside: &'static [&'static str],
    pub cluster_ips: &'static [&'static str],
    /// External and load balancer IPs that are nobody's else.
    pub external: &'static [&'static str],
    /// External and load balancer IPs that somebody has: the node, a service.
    pub taken: &'static [&'static str],
    /// ServiceCIDRs.
    pub service_ranges: &'static [&'static str],
    /// In the service ranges, and no service's.
    pub unallocated: &'static str,
    pub source_ranges: &'static [&'static str],
    /// Of pods, for the detection by range.
    pub pod_ranges: &'static [&'static str],
    pub node_port_ranges: &'static [&'static str],
}

pub const V4: Places = Places {
    v4: true,
    node: &[
        ("192.168.0.2", "eth0"),
        ("192.168.1.2", "eth1"),
        ("10.10.0.1", "cni0"),
        ("127.0.0.1", "lo"),
    ],
    bridged: &["10.10.0.2", "10.10.0.3"],
    routed: &["172.20.0.2", "172.20.0.3"],
    remote: &["192.168.77.10", "192.168.77.11", "192.168.77.12", "10.10.1.2"],
    outside: &["203.0.113.2", "198.18.0.1"],
    cluster_ips: &[
        "172.30.0.10",
        "172.30.0.11",
        "172.30.0.12",
        "172.30.0.13",
        "172.30.0.14",
        "172.30.0.15",
    ],
    external: &["198.51.100.9", "198.51.100.10", "203.0.113.50"],
    taken: &["192.168.0.2", "192.168.1.2", "172.30.0.11", "172.30.0.200"],
    service_ranges: &["172.30.0.0/16", "172.30.0.0/24", "172.31.0.0/16"],
    unallocated: "172.30.0.200",
    source_ranges: &[
        "203.0.113.0/24",
        " 10.0.0.0/8 ",
        "192.168.0.0/24",
        "203.0.113.2/32",
        "0.0.0.0/0",
    ],
    pod_ranges: &["10.10.0.0/24", "172.20.0.0/16", "10.0.0.0/8"],
    node_port_ranges: &["192.168.0.0/16", "192.168.1.0/24", "127.0.0.0/8", "0.0.0.0/0"],
};

pub const V6: Places = Places {
    v4: false,
    node: &[
        ("2001:db8::1", "eth0"),
        ("2001:db8:1::2", "eth1"),
        ("fd00:10:10::1", "cni0"),
        ("fe80::2", "eth0"),
        ("::1", "lo"),
    ],
    bridged: &["fd00:10:10::2", "fd00:10:10::3"],
    routed: &["fd00:172:20::2", "fd00:172:20::3"],
    remote: &["fd00:77::10", "fd00:77::11", "fd00:77::12", "fd00:10:10:1::2"],
    outside: &["2600:5200::1", "2600:5200:1::1"],
    cluster_ips: &[
        "fd00:172:30::10",
        "fd00:172:30::11",
        "fd00:172:30::12",
        "fd00:172:30::13",
        "fd00:172:30::14",
        "fd00:172:30::15",
    ],
    external: &["2001:db8:9::9", "2001:db8:9::10", "2600:5200::50"],
    taken: &["2001:db8::1", "2001:db8:1::2", "fd00:172:30::11", "fd00:172:30::200"],
    service_ranges: &["fd00:172:30::/112", "fd00:172:30::/108", "fd00:172:31::/112"],
    unallocated: "fd00:172:30::200",
    source_ranges: &["2600:5200::/64", " fd00::/16 ", "2001:db8::/64", "2600:5200::1/128", "::/0"],
    pod_ranges: &["fd00:10:10::/64", "fd00:172:20::/64", "fd00::/16"],
    node_port_ranges: &["2001:db8::/32", "2001:db8:1::/64", "::1/128", "::/0"],
};

pub const FAMILIES: [&Places; 2] = [&V4, &V6];

/// Ports of services, node ports among them.
pub const PORTS: [u16; 4] = [80, 443, 53, 30080];
pub const NODE_PORTS: [u16; 3] = [30080, 30081, 80];
pub const TARGETS: [u16; 3] = [8080, 8081, 80];
pub const PORT_NAMES: [&str; 4] = ["http", "dns", "x", ""];
pub const PROTOCOLS: [(&str, u8); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];
