//! A node of network namespaces, from the ground up: one namespace, links, a node with its
//! surroundings, pods behind real CNI chains, manifests in the API's place.

pub mod busy_node;
pub mod cgroup;
pub mod cluster;
pub mod cni;
pub mod fixture;
pub mod links;
pub mod manifest;
pub mod netns;
pub mod pod;
pub mod two_nodes;
pub mod world;
