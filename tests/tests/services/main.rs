//! What becomes of packets to and from services, feature by feature, each under the name that
//! Kubernetes has for it. Every test makes its own hosts and runs the real agent.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod another_proxy;
mod churn;
mod cluster_ip;
mod conflicts;
mod conntrack;
mod context;
mod egress_masquerade;
mod endpoint_choice;
mod endpoints;
mod external_traffic_policy;
mod hairpin;
mod health_check_node_port;
mod host_ports;
mod load_balancer_source_ranges;
mod local_detection;
mod no_endpoints;
mod node_port;
mod node_port_on_localhost;
mod programming;
mod session_affinity;
