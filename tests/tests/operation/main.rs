//! Running the agent: its configuration, restarts and upgrades, changes while it runs, health,
//! metrics and the page for people.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod busy_clients;
mod busy_node;
mod compare;
mod config_file;
mod connections;
mod drops;
mod health;
mod in_force;
mod live_changes;
mod lost_output;
mod metrics;
mod monitoring;
mod other_release;
mod page;
mod quickstart;
mod refused;
mod restart;
mod trace;
mod upgrade;
