//! The rules themselves: how they are written, kept in the kernel beside others' rules, and taken
//! over from another backend or another service proxy.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod auto;
mod foreign_changes;
mod forward_drop;
mod iptables;
mod kernel_settings;
mod nft_oracle;
mod other_engine;
mod policy_migration;
mod services_off;
mod stock_kernel;
mod takeover;
