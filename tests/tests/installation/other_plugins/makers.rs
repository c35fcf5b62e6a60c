//! What other makers' CNI plugins give a pod: by the plugin itself where it is Debian's, else by
//! hand, as the plugin's source has it in 2026. Debian has no other maker's plugin.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use denizen_tests::node::cni::{Chain, POD_INTERFACE};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{MadeByHand, Pod};
use denizen_tests::node::world::host_length;
use serde_json::{Value, json};

/// A CNI plugin as the first of a chain.
pub struct Maker {
    /// The version of the CNI specification in the conflist that its maker ships.
    pub version: &'static str,
    /// The bridge that its pods are behind.
    pub bridge: Option<&'static str>,
    /// The addresses of its first pods, as many as it gives each.
    pub ranges: &'static [&'static str],
    pub links: Links,
}

/// The configuration of a plugin for these ranges of addresses, with its data in the folder.
pub type Plugin = fn(&[&str], &Path) -> Value;

/// How a pod gets its links.
pub enum Links {
    /// By this plugin.
    Plugin(Plugin),
    /// By hand.
    ByHand(fn(&Place<'_>) -> Result<MadeByHand>),
}

/// Where links are made, and for which addresses.
pub struct Place<'a> {
    node: &'a Netns,
    pod: &'a Netns,
    name: &'a str,
    number: u8,
    ips: &'a [IpAddr],
}

impl Maker {
    /// The network of its plugin `first`, without denizen.
    pub fn network(&self, first: Plugin, folder: &Path) -> Chain {
        let plugins = vec![first(self.ranges, folder)];
        Chain { version: self.version, ..Chain::new("pods", plugins) }
    }

    /// The pod of this name with the addresses of `number`, which its maker's plugin has attached.
    pub fn attach(
        &self,
        node: &Netns,
        netns: Netns,
        (name, number): (&str, u8),
        folder: &Path,
    ) -> Result<Pod> {
        match self.links {
            Links::Plugin(first) => Pod::attach(node, netns, name, &self.network(first, folder)),
            Links::ByHand(make) => {
                let ips = self.ranges.iter().map(|range| nth(range, number));
                let ips = ips.collect::<Result<Vec<_>>>()?;
                let mut made = make(&Place { node, pod: &netns, name, number, ips: &ips })?;
                made.result["cniVersion"] = self.version.into();
                if self.version < "1.0.0" {
                    for ip in made.result["ips"].as_array_mut().into_iter().flatten() {
                        let is_ipv6 = ip["address"].as_str().is_some_and(|text| text.contains(':'));
                        ip["version"] = if is_ipv6 { "6" } else { "4" }.into();
                    }
                }
                Ok(Pod::made_by_hand(netns, name, self.version, made))
            }
        }
    }
}

/// The address of this number in a range that ends with zeros.
fn nth(range: &str, number: u8) -> Result<IpAddr> {
    let (network, _) = range.split_once('/').context("a range")?;
    let address = match network.strip_suffix("::") {
        Some(_) => format!("{network}{number:x}"),
        None => format!("{}.{number}", network.strip_suffix(".0").context("a range")?),
    };
    Ok(address.parse()?)
}

impl Place<'_> {
    /// Makes the veth inside the pod and then moves the node's end out. It keeps the index that it
    /// has in there, the same in every pod, where no link of the node has it.
    fn veth_moved_out(&self, host: &str, mac: Option<&str>) -> Result<()> {
        let mac = mac.map_or(String::new(), |mac| format!("address {mac}"));
        self.pod.ip(&format!(
            "link add {host} index 7 {mac} type veth peer name {POD_INTERFACE}\n\
             link set {host} up\nlink set {POD_INTERFACE} up\nlink set {host} netns {node}",
            node = self.node.name(),
        ))?;
        self.node.ip(&format!("link set {host} up"))
    }

    /// Makes the veth on the node and then moves the pod's end in.
    fn veth_moved_in(&self, host: &str) -> Result<()> {
        let pod = self.pod.name();
        self.node.ip(&format!(
            "link add {host} type veth peer name {POD_INTERFACE} netns {pod}\nlink set {host} up"
        ))?;
        self.pod.ip(&format!("link set {POD_INTERFACE} up"))
    }

    /// The address that `ip` says of a link.
    fn mac(netns: &Netns, link: &str) -> Result<String> {
        let text = netns.output("ip", &["-json", "link", "show", link])?;
        let links: Value = serde_json::from_str(&text)?;
        Ok(links[0]["address"].as_str().context("an address")?.to_owned())
    }

    /// A default route of each family through a gateway that is no address of anything: the pod
    /// knows it by `neighbour` alone where that is given, or by proxy ARP.
    fn route_through(&self, gateways: [&str; 2], neighbour: Option<&str>) -> Result<()> {
        for ip in self.ips {
            let gateway = gateways[usize::from(ip.is_ipv6())];
            let length = if ip.is_ipv6() { 128 } else { 32 };
            let mut commands = format!("route add {gateway}/{length} dev {POD_INTERFACE}");
            if let Some(mac) = neighbour {
                commands += &format!(
                    "\nneigh add {gateway} lladdr {mac} nud permanent dev {POD_INTERFACE}"
                );
            }
            commands += &format!("\nroute add default via {gateway} dev {POD_INTERFACE}");
            self.pod.ip(&commands)?;
        }
        Ok(())
    }

    fn address_pod(&self) -> Result<()> {
        let all = self
            .ips
            .iter()
            .map(|ip| format!("addr add {ip}/{} dev {POD_INTERFACE} nodad", host_length(*ip)));
        self.pod.ip(&all.collect::<Vec<_>>().join("\n"))
    }

    /// The node's routes to the pod.
    fn route_to(&self, host: &str) -> Result<()> {
        let all = self.ips.iter().map(|ip| match ip {
            IpAddr::V4(_) => format!("route add {ip} dev {host} scope link"),
            IpAddr::V6(_) => format!("route add {ip} dev {host}"),
        });
        self.node.ip(&all.collect::<Vec<_>>().join("\n"))
    }

    /// The addresses of a result, with the index of their interface in its list.
    fn ips(&self, interface: Option<usize>) -> Value {
        let all = self.ips.iter().map(|ip| {
            let mut entry = json!({ "address": format!("{ip}/{}", host_length(*ip)) });
            if let Some(index) = interface {
                entry["interface"] = index.into();
            }
            entry
        });
        all.collect()
    }

    fn made(host: String, result: Value) -> MadeByHand {
        MadeByHand { input_interface: host.clone(), host_interface: host, result }
    }
}

/// flannel calls `bridge` with this configuration; its own result is that of `bridge`.
pub fn flannel() -> Maker {
    Maker {
        version: "0.3.1",
        bridge: Some("cni0"),
        ranges: &["10.244.1.0/24", "fd00:244::/64"],
        links: Links::Plugin(|ranges, folder| {
            let ranges: Vec<_> =
                ranges.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
            json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true,
                "hairpinMode": true, "ipMasq": false, "mtu": 1450,
                "ipam": {
                    "type": "host-local", "dataDir": folder, "ranges": ranges,
                    "routes": [{ "dst": "10.244.0.0/16" }, { "dst": "fd00:244::/48" }],
                },
            })
        }),
    }
}

/// kindnet, as kind has it: its conflist calls `ptp`.
pub fn kindnet_by_ptp() -> Maker {
    Maker {
        version: "0.3.1",
        bridge: None,
        ranges: &["10.244.2.0/24", "fd00:244:2::/64"],
        links: Links::Plugin(|ranges, folder| {
            let ranges: Vec<_> =
                ranges.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
            json!({
                "type": "ptp", "ipMasq": false, "mtu": 1500,
                "ipam": {
                    "type": "host-local", "dataDir": folder, "ranges": ranges,
                    "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                },
            })
        }),
    }
}

/// kindnet's own plugin. Its result names the pod's interface without the sandbox, and its
/// addresses are those of that entry.
pub fn kindnet() -> Maker {
    Maker {
        version: "0.4.0",
        bridge: None,
        ranges: &["10.244.3.0/24", "fd00:244:3::/64"],
        links: Links::ByHand(|place| {
            let host = format!("knet{}", place.name);
            place.veth_moved_in(&host)?;
            place.address_pod()?;
            for ip in place.ips {
                // Every pod's interface on the node has the address of the node in the range.
                let gateway = if ip.is_ipv6() { "fd00:244:3::fe" } else { "10.244.3.254" };
                let length = host_length(*ip);
                place.node.ip(&format!(
                    "addr add {gateway}/{length} dev {host} nodad\n\
                     route add {ip}/{length} dev {host} src {gateway}"
                ))?;
                place.pod.ip(&format!(
                    "route add {gateway}/{length} dev {POD_INTERFACE}\n\
                     route add default via {gateway} dev {POD_INTERFACE} src {ip}"
                ))?;
            }
            let result = json!({
                "interfaces": [{ "name": POD_INTERFACE }], "ips": place.ips(Some(0)), "dns": {},
            });
            Ok(Place::made(host, result))
        }),
    }
}

/// Calico with its Linux data plane. Every pod's interface on the node has the same MAC address.
pub fn calico() -> Maker {
    Maker {
        version: "0.3.1",
        bridge: None,
        ranges: &["192.168.201.0/24", "fd00:192:168::/64"],
        links: Links::ByHand(|place| {
            let host = format!("cali{}", place.name);
            place.veth_moved_out(&host, Some("ee:ee:ee:ee:ee:ee"))?;
            for (key, value) in [
                (format!("net.ipv4.conf.{host}.route_localnet"), "1"),
                (format!("net.ipv4.neigh.{host}.proxy_delay"), "0"),
                (format!("net.ipv4.conf.{host}.proxy_arp"), "1"),
                (format!("net.ipv4.conf.{host}.forwarding"), "1"),
                (format!("net.ipv6.conf.{host}.proxy_ndp"), "1"),
                (format!("net.ipv6.conf.{host}.forwarding"), "1"),
            ] {
                place.node.sysctl(&key, value)?;
            }
            place.address_pod()?;
            place.route_through(["169.254.1.1", "fe80::ecee:eeff:feee:eeee"], None)?;
            place.route_to(&host)?;
            let result =
                json!({ "interfaces": [{ "name": host }], "ips": place.ips(None), "dns": {} });
            Ok(Place::made(host, result))
        }),
    }
}

/// The AWS VPC CNI. A pod has addresses of one family, and leaves by the table of its network
/// interface's routes. The result ends with an entry that is no interface: it keeps facts for DEL.
pub fn aws_vpc(ranges: &'static [&'static str]) -> Maker {
    Maker {
        version: "0.4.0",
        bridge: None,
        ranges,
        links: Links::ByHand(|place| {
            let host = format!("eni{}", place.name);
            place.veth_moved_out(&host, None)?;
            for (key, value) in [("accept_ra", "0"), ("accept_redirects", "1"), ("forwarding", "0")]
            {
                place.node.sysctl(&format!("net.ipv6.conf.{host}.{key}"), value)?;
            }
            place.address_pod()?;
            let mac = Place::mac(place.node, &host)?;
            place.route_through(["169.254.1.1", "fe80::1"], Some(&mac))?;
            place.route_to(&host)?;
            for ip in place.ips {
                let family = if ip.is_ipv6() { "-6" } else { "-4" };
                let gateway = if ip.is_ipv6() { "fe80::1" } else { "169.254.0.1" };
                let routes = format!("route replace default via {gateway} dev eth0 onlink table 2");
                let rules = [
                    format!("to {ip} priority 512 table main"),
                    format!("from {ip} priority 1536 table 2"),
                ];
                for rule in &rules {
                    // Of a pod that had the address before: the plugin's own DEL removes them.
                    let old = format!("rule del {rule}\n");
                    let _ = place.node.feed("ip", &[family, "-batch", "-"], &old);
                }
                let [to, from] = rules.map(|rule| format!("rule add {rule}\n"));
                let commands = format!("{routes}\n{to}{from}");
                place.node.feed("ip", &[family, "-batch", "-"], &commands)?;
            }
            let result = json!({
                "interfaces": [
                    { "name": host },
                    { "name": POD_INTERFACE, "sandbox": place.pod.path(), "pciID": "2" },
                    { "name": format!("dummy{}", place.name), "mac": "0", "sandbox": "1", "socketPath": "1" },
                ],
                "ips": place.ips(Some(1)), "dns": {},
            });
            Ok(Place::made(host, result))
        }),
    }
}

/// The AWS VPC CNI in a cluster with IPv6 alone: its second plugin gives the pod another interface
/// for what leaves the cluster by IPv4. The result lists it, without its addresses.
pub fn aws_vpc_with_egress() -> Maker {
    Maker {
        links: Links::ByHand(|place| {
            let Links::ByHand(first) = aws_vpc(&[]).links else { unreachable!("it is by hand") };
            let mut made = first(place)?;
            let host = format!("veth{}", place.name);
            let (pod, number) = (place.pod.name(), place.number);
            let (ip, gateway) = (format!("169.254.172.{number}"), "169.254.172.1");
            place.node.ip(&format!(
                "link add {host} type veth peer name v4if0 netns {pod}\nlink set {host} up\n\
                 addr add {gateway}/32 dev {host} scope link\n\
                 route add {ip} dev {host} scope link"
            ))?;
            place.pod.ip(&format!(
                "link set v4if0 up\naddr add {ip}/22 dev v4if0 noprefixroute\n\
                 route add {gateway} dev v4if0 scope link src {ip}\n\
                 route add default via {gateway} dev v4if0 src {ip}"
            ))?;
            let listed = made.result["interfaces"].as_array_mut().context("interfaces")?;
            listed.push(json!({ "name": host, "mac": Place::mac(place.node, &host)? }));
            let mac = Place::mac(place.pod, "v4if0")?;
            listed.push(json!({ "name": "v4if0", "mac": mac, "sandbox": place.pod.path() }));
            Ok(made)
        }),
        ..aws_vpc(&["fd00:10:99::/64"])
    }
}

/// Azure CNI in its mode `transparent`. Its result names the pod's interface without the sandbox,
/// and with the length of the subnet's prefix; the node has an interface of that name too.
pub fn azure() -> Maker {
    Maker {
        version: "0.3.0",
        bridge: None,
        ranges: &["10.241.0.0/16", "fd00:10:241::/64"],
        links: Links::ByHand(|place| {
            let host = format!("azv{}", place.name);
            place.veth_moved_in(&host)?;
            place.address_pod()?;
            let mac = Place::mac(place.node, &host)?;
            place.route_through(["169.254.1.1", "fe80::1234:5678:9abc"], Some(&mac))?;
            place.route_to(&host)?;
            place.node.sysctl(&format!("net.ipv4.conf.{host}.proxy_arp"), "1")?;
            let ips = place.ips.iter().map(|ip| {
                let length = if ip.is_ipv6() { 64 } else { 16 };
                json!({ "address": format!("{ip}/{length}"), "gateway": "10.241.0.1" })
            });
            let result = json!({
                "interfaces": [{ "name": POD_INTERFACE, "mac": Place::mac(place.pod, POD_INTERFACE)? }],
                "ips": ips.collect::<Vec<_>>(),
                "routes": [{ "dst": "0.0.0.0/0", "gw": "10.241.0.1" }],
                "dns": { "nameservers": ["168.63.129.16"] },
            });
            Ok(Place::made(host, result))
        }),
    }
}

/// Cilium chained behind another plugin (`generic-veth`): it replaces the pod's MAC address, and
/// puts its programs on both directions of the interface on the node. Here they let everything
/// pass, as without policies.
pub fn cilium_chained() -> Maker {
    Maker {
        version: "0.3.1",
        bridge: None,
        ranges: &["10.0.1.0/24", "fd00:10:1::/64"],
        links: Links::ByHand(|place| {
            let host = format!("veth{}", place.name);
            place.veth_moved_in(&host)?;
            let before = Place::mac(place.pod, POD_INTERFACE)?;
            let after = format!("0a:58{}", &before[5..]);
            place.pod.ip(&format!("link set {POD_INTERFACE} address {after}"))?;
            place.address_pod()?;
            let mac = Place::mac(place.node, &host)?;
            place.route_through(["169.254.1.1", "fe80::1"], Some(&mac))?;
            place.route_to(&host)?;
            place.node.output("tc", &["qdisc", "add", "dev", &host, "clsact"])?;
            for direction in ["ingress", "egress"] {
                let add = ["filter", "add", "dev", &host, direction];
                // One instruction: return -1, which is what Cilium's program returns of a packet
                // that the kernel's network stack is to go on with.
                let program = ["bpf", "da", "bytecode", "1,6 0 0 4294967295"];
                place.node.output("tc", &[&add[..], &program].concat())?;
            }
            let result = json!({
                "interfaces": [
                    { "name": host, "mac": mac },
                    { "name": POD_INTERFACE, "mac": after, "sandbox": place.pod.path() },
                ],
                "ips": place.ips(Some(1)), "dns": {},
            });
            Ok(Place::made(host, result))
        }),
    }
}
