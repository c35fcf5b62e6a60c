//! What the loop says of itself, for those who run beside it.

use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::backend::Backend;
use crate::engine::Engine;
use crate::http::Published;
use crate::plan::HealthPorts;
use crate::status::health::Pulse;

/// The loop's end of [`Published`].
#[derive(Debug)]
pub(super) struct Publisher {
    pulse: watch::Sender<Pulse>,
    ports: watch::Sender<HealthPorts>,
}

impl Publisher {
    pub(super) fn new(now: Instant) -> (Self, Published) {
        let (pulse, pulse_receiver) = watch::channel(Pulse::starting(now));
        let (ports, ports_receiver) = watch::channel(HealthPorts::default());
        let published = Published {
            pulse: pulse_receiver,
            ports: ports_receiver,
        };
        (Self { pulse, ports }, published)
    }

    /// The loop comes round.
    pub(super) fn alive(&self, now: Instant) {
        self.pulse.send_modify(|pulse| pulse.alive = now);
    }

    /// There is something to program.
    pub(super) fn queued<B>(&self, engine: &Engine<B>, now: Instant) {
        self.pulse.send_modify(|pulse| {
            pulse.alive = now;
            pulse.node_eligible = engine.is_node_eligible();
            pulse.waiting.get_or_insert(now);
        });
    }

    /// All that was to program is in the kernel. A load balancer is told of endpoints only now.
    pub(super) fn programmed<B: Backend>(&self, engine: &mut Engine<B>, now: Instant, clock: Timestamp) {
        self.pulse.send_modify(|pulse| {
            pulse.alive = now;
            pulse.waiting = None;
            pulse.updated = Some(clock);
            pulse.synced = engine.is_synced();
        });
        if let Some(ports) = engine.take_health_ports() {
            self.ports.send_if_modified(|now| {
                let differs = *now != ports;
                *now = ports;
                differs
            });
        }
    }
}
