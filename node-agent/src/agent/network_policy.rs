//! Whether NetworkPolicies are enforced here, settled once at the start.

use denizen_state::firewall::note_whether_off;
use tracing::{info, warn};

use crate::config::{Config, NetworkPolicyMode};
use crate::describe::describe;
use crate::firewall::other_engine::other_engine;
use crate::firewall::{probe, remove_left_over};
use crate::plan::FirewallSettings;
use crate::sysctl::BridgeFilter;

/// Settles what `--network-policy auto` means on this node. Returns why. If it is off, what a run
/// that had it on left is undone.
pub(super) fn choose(config: &mut Config) -> String {
    let settings = config.policy.firewall.unwrap_or_default();
    let (is_on, why) = match config.network_policy {
        NetworkPolicyMode::On => (true, "it is configured".to_owned()),
        NetworkPolicyMode::Off => (false, "it is configured".to_owned()),
        NetworkPolicyMode::Auto => automatic(settings),
    };
    info!(on = is_on, why, "NetworkPolicy chosen");
    if !is_on {
        config.policy.firewall = None;
        config.features.network_policy = false;
        remove_left_over();
        BridgeFilter::new(&config.sysctl_dir, &config.run_dir).set_back();
    }
    if let Err(error) = note_whether_off(&config.run_dir, !is_on) {
        let file = config.run_dir.display();
        warn!(run_dir = %file, %error, "the plugin cannot be told whether NetworkPolicies are enforced");
    }
    why
}

/// Enforces them unless another engine does, or this kernel cannot.
fn automatic(settings: FirewallSettings) -> (bool, String) {
    let (is_alone, why) = match other_engine() {
        Ok(None) => (true, "no other engine enforces policy on this node".to_owned()),
        Ok(Some(engine)) => {
            let found = format!("{} enforces policy here: {}", engine.name, engine.found);
            (false, format!("{found}. --network-policy on overrides this"))
        }
        // Two engines only refuse more than one.
        Err(error) => {
            let error = describe(&error);
            warn!(error, "another engine of NetworkPolicy would not be seen");
            (true, "another engine was not found, and may not have been seen".to_owned())
        }
    };
    match probe(settings) {
        Err(error) if is_alone => {
            (false, format!("nf_tables cannot be used here: {}", describe(&error)))
        }
        Ok(()) | Err(_) => (is_alone, why),
    }
}
