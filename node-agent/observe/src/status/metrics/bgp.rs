//! The metrics of BGP sessions.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use denizen_routing::bird::BgpStatus;

/// One label with the peer's name.
type PeerLabel = [(&'static str, String); 1];

/// Without series while this agent does not configure BIRD.
#[derive(Debug, Clone, Default)]
pub struct Bgp {
    speaker_up: Gauge,
    down: Gauge,
    up: Family<PeerLabel, Gauge>,
    exported: Family<PeerLabel, Gauge>,
    imported: Family<PeerLabel, Gauge>,
}

impl Bgp {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Whether BIRD answers and has its configuration; 0 also while it is not wanted";
        registry.register("speaker_up", help, metrics.speaker_up.clone());
        let help = "BGP sessions that are not established";
        registry.register("sessions_down", help, metrics.down.clone());
        let help = "Whether the BGP session with a peer is established";
        registry.register("peer_up", help, metrics.up.clone());
        let help = "Prefixes that were exported to a BGP peer";
        registry.register("exported_prefixes", help, metrics.exported.clone());
        let help = "Prefixes that were taken of a BGP peer";
        registry.register("imported_prefixes", help, metrics.imported.clone());
        metrics
    }

    pub fn set(&self, status: &BgpStatus) {
        let Self { speaker_up, down, up, exported, imported } = self;
        speaker_up.set(i64::from(status.is_answering && status.is_current));
        down.set(gauge(status.sessions.iter().filter(|session| !session.is_up()).count()));
        for family in [up, exported, imported] {
            family.clear();
        }
        for session in &status.sessions {
            let peer: PeerLabel = [("peer", session.peer.clone())];
            up.get_or_create(&peer).set(i64::from(session.is_up()));
            exported.get_or_create(&peer).set(gauge(session.exported));
            imported.get_or_create(&peer).set(gauge(session.imported));
        }
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
