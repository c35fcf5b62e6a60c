//! Whether this agent enforces NetworkPolicies. Decided once, at the start.

use denizen_plan::MarkBit;
use denizen_state::firewall::note_whether_off;
use tracing::{info, warn};

use crate::config::{Config, NetworkPolicyMode};
use denizen_backend::firewall::other_engine::other_engine;
use denizen_backend::firewall::{probe, remove_left_over};
use denizen_backend::sysctl::BridgeFilter;
use denizen_conntrack::Conntrack;
use denizen_plan::FirewallSettings;
use denizen_text::describe;

/// Who enforces NetworkPolicies, and why.
#[derive(Debug, Clone)]
pub(super) struct Enforcer {
    /// [`OURS`], or another engine; `None` if none is known.
    pub(super) engine: Option<&'static str>,
    pub(super) why: String,
}

/// The name of this engine.
const OURS: &str = "Denizen";

/// Decides what `--network-policy auto` means on this node. If policies are not enforced, removes
/// what an earlier run that enforced them left.
pub(super) fn choose(config: &mut Config) -> Enforcer {
    let settings = config.policy.firewall.unwrap_or_default();
    let configured = |engine| Enforcer { engine, why: "it is configured".to_owned() };
    let Enforcer { engine, why } = match config.network_policy {
        NetworkPolicyMode::On => configured(Some(OURS)),
        NetworkPolicyMode::Off => configured(None),
        NetworkPolicyMode::Auto => automatic(settings),
    };
    let is_on = engine == Some(OURS);
    info!(on = is_on, why, "NetworkPolicy chosen");
    if !is_on {
        config.policy.firewall = None;
        config.features.network_policy = false;
        if remove_left_over() {
            permit_connections();
        }
        BridgeFilter::new(&config.sysctl_dir, &config.run_dir).set_back();
    }
    if let Err(error) = note_whether_off(&config.run_dir, !is_on) {
        let file = config.run_dir.display();
        warn!(run_dir = %file, %error, "cannot note for the plugin whether NetworkPolicies are enforced");
    }
    Enforcer { engine, why }
}

/// Clears the mark of forbidden connections: a later run that enforces policies would drop packets
/// of marked connections until it has decided about them.
fn permit_connections() {
    let conntrack = Conntrack::open(MarkBit::FORBIDDEN.mask()).map_err(|error| describe(&error));
    let permitted = conntrack
        .and_then(|mut conntrack| conntrack.unmark_all().map_err(|error| describe(&error)));
    match permitted {
        Ok(connections) => info!(connections, "no connection is forbidden any more"),
        Err(error) => warn!(error, "forbidden connections keep their mark"),
    }
}

/// What `auto` means here: Denizen enforces policies unless another engine does, or this kernel
/// cannot.
fn automatic(settings: FirewallSettings) -> Enforcer {
    let (engine, why) = match other_engine() {
        Ok(None) => (OURS, "no other engine enforces policy on this node".to_owned()),
        Ok(Some(engine)) => {
            let found = format!("{} enforces policy here: {}", engine.name, engine.found);
            (engine.name, format!("{found}. --network-policy on overrides this"))
        }
        // Enforce them in this case: two engines at once drop more than one does, and never less.
        Err(error) => {
            let error = describe(&error);
            warn!(error, "another engine of NetworkPolicy would not be seen");
            (OURS, "another engine was not found, and may not have been seen".to_owned())
        }
    };
    match probe(settings) {
        Err(error) if engine == OURS => {
            let why = format!("nf_tables cannot be used here: {}", describe(&error));
            Enforcer { engine: None, why }
        }
        Ok(()) | Err(_) => Enforcer { engine: Some(engine), why },
    }
}
