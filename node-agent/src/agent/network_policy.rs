//! Whether NetworkPolicies are enforced here, settled once at the start.

use tracing::{info, warn};

use crate::config::{Config, NetworkPolicyMode};
use crate::describe::describe;
use crate::firewall::other_engine::other_engine;
use crate::firewall::remove_left_over;

/// Settles what `--network-policy auto` means on this node. Returns why. If it is off, tables of a
/// run that had it on are removed.
pub(super) fn choose(config: &mut Config) -> String {
    let (is_on, why) = match config.network_policy {
        NetworkPolicyMode::On => (true, "it is configured".to_owned()),
        NetworkPolicyMode::Off => (false, "it is configured".to_owned()),
        NetworkPolicyMode::Auto => match other_engine() {
            Ok(None) => (true, "no other engine enforces policy on this node".to_owned()),
            Ok(Some(engine)) => {
                let found = format!("{} enforces policy here: {}", engine.name, engine.found);
                (false, format!("{found}. --network-policy on overrides this"))
            }
            // Two engines only refuse more than one.
            Err(error) => {
                warn!(
                    error = describe(&error),
                    "another engine of NetworkPolicy would not be seen"
                );
                (true, "another engine was not found, and may not have been seen".to_owned())
            }
        },
    };
    info!(on = is_on, why, "NetworkPolicy chosen");
    if !is_on {
        config.policy.firewall = None;
        config.features.network_policy = false;
        remove_left_over();
    }
    why
}
