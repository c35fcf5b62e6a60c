//! Pods of the node: attached through the real CNI chain, or wired by hand where a test needs one
//! exact address; recorded by the real `denizen` plugin either way.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::net::if_::if_nametoindex;
use serde_json::{Value, json};

use crate::node::cni::{Added, CNI_VERSION, Call, Chain, POD_INTERFACE, Refusal};
use crate::node::links::{LinkRoute, Mac, VethPeer};
use crate::node::netns::Netns;
use crate::node::world::host_length;

/// The bridge of bridged pods.
pub const BRIDGE: &str = "cni0";

/// The bridge's MAC address where tests make the bridge: the kernel's own choice would change with
/// the bridge's ports.
const BRIDGE_MAC: Mac = [0x02, 0, 0, 0, 0, 0x01];

/// The node's addresses towards pods that are wired by hand, one of each family.
const GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
];

/// How a pod's packets reach the node's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// Through a bridge: the stack sees the bridge as their input interface.
    Bridged,
    /// Through a veth of its own.
    Routed,
}

/// A pod's interfaces and result, made by hand as another maker's plugin would make them.
#[derive(Debug)]
pub struct MadeByHand {
    /// The node's end of the pod's veth.
    pub host_interface: String,
    /// The interface through which the node's stack sees the pod's packets come in.
    pub input_interface: String,
    /// The result that such a plugin would return.
    pub result: Value,
}

/// A pod of the node.
#[derive(Debug)]
pub struct Pod {
    /// Its network namespace.
    pub netns: Netns,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The interface through which the node's stack sees the pod's packets come in.
    pub input_interface: String,
    host_interface: String,
    call: Call,
    chain: Chain,
    result: Value,
    took: Vec<(String, Duration)>,
}

impl Pod {
    /// A pod in the namespace `netns`, attached by `chain`, which begins with a plugin that makes
    /// interfaces.
    pub fn attach(node: &Netns, netns: Netns, name: &str, chain: &Chain) -> Result<Self> {
        let call = Call::of_pod(netns.name(), name, &netns.path());
        Self::attach_by(node, netns, call, chain)
    }

    /// The same with a given UID of the pod.
    pub fn attach_with_uid(
        node: &Netns,
        netns: Netns,
        (name, uid): (&str, &str),
        chain: &Chain,
    ) -> Result<Self> {
        let mut call = Call::of_pod(netns.name(), name, &netns.path());
        call.args = call.args.replace(&format!("uid-{}", netns.name()), uid);
        Self::attach_by(node, netns, call, chain)
    }

    fn attach_by(node: &Netns, netns: Netns, call: Call, chain: &Chain) -> Result<Self> {
        let Added { result, took } = chain.add_after(node, &call, None).map_err(failed("ADD"))?;
        let host_interfaces = || {
            let entries = result["interfaces"].as_array().into_iter().flatten();
            entries.filter(|entry| entry["sandbox"].as_str().unwrap_or_default().is_empty())
        };
        let names: Vec<_> = host_interfaces().filter_map(|entry| entry["name"].as_str()).collect();
        // `bridge` lists the bridge first and then the veth, `ptp` the veth alone.
        let input_interface =
            (*names.first().context("the chain made no interface on the node")?).to_owned();
        let host_interface =
            (*names.last().context("the chain made no interface on the node")?).to_owned();
        let addresses = addresses_of(&result);
        if addresses.iter().any(IpAddr::is_ipv6) {
            node.wait_for_ipv6(&input_interface)?;
            netns.wait_for_ipv6(POD_INTERFACE)?;
        }
        Ok(Self {
            netns,
            addresses,
            input_interface,
            host_interface,
            call,
            chain: chain.clone(),
            result,
            took,
        })
    }

    /// A pod with exactly these addresses, wired by hand. No plugin has recorded it yet.
    pub fn wire(
        node: &Netns,
        netns: Netns,
        name: &str,
        wiring: Wiring,
        addresses: &[IpAddr],
    ) -> Result<Self> {
        let host_interface = format!("v-{name}");
        wire_node(node, &netns, &host_interface, wiring, addresses)?;
        wire_pod(&netns, wiring, addresses)?;
        let input_interface = match wiring {
            Wiring::Bridged => BRIDGE.to_owned(),
            Wiring::Routed => host_interface.clone(),
        };
        let ips = addresses
            .iter()
            .map(|ip| json!({ "address": format!("{ip}/{}", host_length(*ip)), "interface": 1 }));
        let result = json!({
            "cniVersion": CNI_VERSION,
            "interfaces": [{ "name": host_interface }, { "name": POD_INTERFACE, "sandbox": netns.path() }],
            "ips": ips.collect::<Vec<_>>(),
        });
        let made = MadeByHand { host_interface, input_interface, result };
        Ok(Self::made_by_hand(netns, name, CNI_VERSION, made))
    }

    /// A pod whose links exist already. No plugin has recorded it yet. The runtime speaks `version`
    /// of the CNI specification.
    pub fn made_by_hand(netns: Netns, name: &str, version: &'static str, made: MadeByHand) -> Self {
        let MadeByHand { host_interface, input_interface, result } = made;
        Self {
            addresses: addresses_of(&result),
            input_interface,
            host_interface,
            call: Call::of_pod(netns.name(), name, &netns.path()),
            chain: Chain { version, ..Chain::new("by-hand", Vec::new()) },
            netns,
            result,
            took: Vec::new(),
        }
    }

    /// Makes the real plugin record a pod whose links exist already.
    pub fn record(&mut self, node: &Netns, run_dir: &Path, options: &Value) -> Result<()> {
        self.chain = self.chain.clone().without_denizen().then_denizen(run_dir, options);
        let ours = self.chain.plugins.last().cloned().into_iter().collect();
        let ours = Chain { plugins: ours, ..self.chain.clone() };
        let added = ours.add_after(node, &self.call, Some(self.result.clone()));
        let added = added.map_err(failed("ADD"))?;
        (self.result, self.took) = (added.result, added.took);
        Ok(())
    }

    /// What libcni caches of the ADD: the file's name, and its content. `netns` is the path that
    /// the runtime writes there, which old runtimes leave out.
    pub fn cached(&self, netns: Option<&str>) -> (String, Value) {
        let Call { container: id, args, .. } = &self.call;
        let args: Vec<_> = args.split(';').filter_map(|arg| arg.split_once('=')).collect();
        let mut cached = json!({
            "kind": "cniCacheV1", "containerId": id, "config": "e30=", "ifName": POD_INTERFACE,
            "networkName": self.chain.name, "cniArgs": args, "result": self.result,
        });
        if let Some(netns) = netns {
            cached["netns"] = netns.into();
        }
        (format!("{}-{id}-{POD_INTERFACE}", self.chain.name), cached)
    }

    /// The same pod, with `chain` as its chain from now on.
    #[must_use]
    pub fn through(mut self, chain: &Chain) -> Self {
        self.chain = chain.clone();
        self
    }

    /// DEL, as the runtime calls it when the pod ends. Removes the pod's interface, too.
    pub fn detach(self, node: &Netns) -> Result<()> {
        self.forget(node)?;
        // If a plugin made the interface, it has removed the interface, and there are no such
        // routes; what was made by hand is still there.
        node.change(|links| {
            for address in &self.addresses {
                let _ = links.remove_route(LinkRoute::to(*address, &self.input_interface));
            }
            let _ = links.remove(&self.host_interface);
            Ok(())
        })
    }

    /// DEL by all plugins of the chain. The interface of a pod that was wired by hand remains.
    pub fn forget(&self, node: &Netns) -> Result<()> {
        self.chain.del(node, &self.call, Some(&self.result)).map_err(failed("DEL"))
    }

    /// DEL by the last plugin alone. Returns what the plugin wrote to standard error.
    pub fn forget_last(&self, node: &Netns) -> Result<String> {
        let last = self.chain.plugins.last().context("the chain is not empty")?;
        let done = self.chain.call_with_stderr(node, &self.call, "DEL", last, Some(&self.result));
        done.map(|(_, output)| output).map_err(failed("DEL"))
    }

    /// Its address of the same family as `other`.
    pub fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == other.is_ipv4())
    }

    /// How long each plugin took over its ADD.
    pub fn took(&self) -> &[(String, Duration)] {
        &self.took
    }

    /// The node's end of its veth.
    pub fn host_interface(&self) -> &str {
        &self.host_interface
    }

    /// `<containerId>/<ifName>`, its key in the state file.
    pub fn attachment(&self) -> String {
        format!("{}/{POD_INTERFACE}", self.call.container)
    }
}

fn failed(command: &str) -> impl Fn(Refusal) -> anyhow::Error {
    move |refusal| anyhow!("{command} failed: {refusal}")
}

/// The addresses that a chain's result gives a pod.
pub fn addresses_of(result: &Value) -> Vec<IpAddr> {
    let entries = result["ips"].as_array().into_iter().flatten();
    let texts = entries.filter_map(|entry| entry["address"].as_str()?.split('/').next());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// A MAC address derived from a pod's addresses: neighbours that know it from an earlier pod with
/// these addresses still reach the new one.
fn mac_of(addresses: &[IpAddr]) -> Mac {
    let mut hasher = DefaultHasher::new();
    addresses.hash(&mut hasher);
    let [a, b, c, d, e, ..] = hasher.finish().to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// Wires the node's side. Gateways are link-scoped: they are in no pod's range, whatever the pods'
/// addresses are.
fn wire_node(
    node: &Netns,
    pod: &Netns,
    veth: &str,
    wiring: Wiring,
    addresses: &[IpAddr],
) -> Result<()> {
    node.change(|links| {
        let mac = Some(mac_of(addresses));
        links.veth(veth, VethPeer { name: POD_INTERFACE, mac, netns: pod })?;
        let device = match wiring {
            Wiring::Routed => veth,
            Wiring::Bridged => {
                if if_nametoindex(BRIDGE).is_err() {
                    links.bridge(BRIDGE, BRIDGE_MAC)?;
                    links.up(BRIDGE)?;
                }
                links.enslave(veth, BRIDGE)?;
                BRIDGE
            }
        };
        links.up(veth)?;
        // Also if the `bridge` plugin made the bridge and gave it gateways of its own.
        links.address(device, GATEWAYS[0], 32)?;
        links.address(device, GATEWAYS[1], 64)?;
        addresses.iter().try_for_each(|address| links.route(LinkRoute::to(*address, device)))
    })
}

/// Wires the pod's side. Bridged pods see their neighbours on the link and answer them past the
/// node's routing, as pods behind the `bridge` plugin do; routed pods see only their gateway.
fn wire_pod(pod: &Netns, wiring: Wiring, addresses: &[IpAddr]) -> Result<()> {
    pod.change(|links| {
        links.up(POD_INTERFACE)?;
        for address in addresses {
            let length = match (wiring, address) {
                (Wiring::Bridged, IpAddr::V4(_)) => 24,
                (Wiring::Bridged, IpAddr::V6(_)) => 64,
                (Wiring::Routed, _) => host_length(*address),
            };
            links.address(POD_INTERFACE, *address, length)?;
            let gateway = GATEWAYS[usize::from(address.is_ipv6())];
            links.route(LinkRoute::out(gateway, POD_INTERFACE))?;
        }
        Ok(())
    })
}
