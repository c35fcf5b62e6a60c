//! Hosts in network namespaces, real packets: what the kernel tests and the quick start are built
//! on.
//!
//! | module | what it has |
//! | --- | --- |
//! | [`node`] | a node in namespaces, its surroundings and its pods |
//! | [`agent`] | the real agent and its commands |
//! | [`peers`] | the API server, kube-proxy, BIRD, containerd, a mesh's proxy |
//! | [`packets`] | who sends and who answers |
//! | [`workstation`] | `kubectl denizen`, and an API server that executes for it |
//! | [`kernel`] | what the kernel holds, and guests with a kernel of their own |
//! | [`oracle`], [`policy`] | what must become of a packet |
//! | [`cases`] | what holds with every backend |
//! | [`quickstart`], [`compare`], [`apiserver`], [`mod@bench`] | what is run by hand |
//!
//! Nothing here touches the machine's own network namespace.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files and execute programs; denizen does not"
)]

pub mod agent;
pub mod apiserver;
pub mod bench;
pub mod binary;
pub mod cases;
pub mod compare;
pub mod conf;
pub mod eventually;
#[cfg(test)]
mod harness;
pub mod kernel;
pub mod node;
pub mod oracle;
pub mod packets;
pub mod peers;
pub mod policy;
pub mod quickstart;
pub mod random;
pub mod test_length;
pub mod workstation;
