//! The agent and the Kubernetes API: requests, watches, outages, events, permissions.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod any_server;
mod api;
mod events;
mod faults;
mod firewall;
mod following;
mod kubectl;
mod outages;
mod rbac;
mod refused_policies;
mod start;
mod tiers;
mod watched_pods;
