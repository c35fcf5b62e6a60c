//! Hosts in network namespaces, real packets: what the kernel tests and the quick start stand on.
//!
//! From the ground up: [`netns`] makes one namespace, [`world`] a node with its surroundings,
//! [`pod`] attaches pods to it, [`server`] answers and [`probe`] asks, [`agent`] runs the real
//! agent, and [`flows`] plays the table of packets. Nothing here touches the machine's own network
//! namespace.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files and execute programs; denizen does not"
)]

pub mod agent;
pub mod api;
pub mod bench;
pub mod binary;
pub mod bird;
pub mod busy_node;
pub mod cgroup;
pub mod checking;
pub mod cluster;
pub mod cni;
pub mod conf;
pub mod conntrack;
pub mod contained;
pub mod containerd;
pub mod ctnetlink;
pub mod effort;
pub mod eventually;
pub mod firewall;
pub mod fixture;
pub mod flood;
pub mod flows;
pub mod frame;
#[cfg(test)]
mod harness;
pub mod http;
pub mod iptables;
pub mod kube_proxy;
pub mod lasting;
pub mod linkerd_init;
pub mod links;
pub mod load;
pub mod manifest;
pub mod matrix;
pub mod netns;
pub mod owned;
pub mod pod;
pub mod policy;
pub mod probe;
pub mod quickstart;
pub mod random;
pub mod reader;
pub mod ruleset;
pub mod sctp;
pub mod server;
pub mod sidecar;
pub mod syn;
pub mod timing;
pub mod traced;
pub mod tracing;
pub mod vm;
pub mod watching;
pub mod world;
