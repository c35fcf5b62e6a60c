//! Settings of connection tracking, with the names and meanings of kube-proxy's `conntrack`
//! configuration. Pure.

use std::time::Duration;

use super::setting::{Setting, WantedValue};

/// The requested settings of connection tracking. Zero leaves a setting unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Maximum of tracked connections per CPU.
    pub max_per_core: u32,
    /// Minimum for the maximum of tracked connections, however few CPUs there are.
    pub min: u32,
    /// How long a silent established TCP connection is tracked.
    pub tcp_established: Duration,
    /// How long a TCP connection with one closed end is tracked.
    pub tcp_close_wait: Duration,
    /// Packets outside a TCP connection's window still belong to it: asymmetric routing causes such
    /// packets (kubernetes #74839, #117924). False leaves the setting unchanged.
    pub tcp_be_liberal: bool,
    /// How long an unanswered UDP flow is tracked.
    pub udp: Duration,
    /// How long an answered UDP flow is tracked.
    pub udp_stream: Duration,
}

impl Conntrack {
    /// Leaves all settings unchanged.
    pub const UNCHANGED: Self = Self {
        max_per_core: 0,
        min: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        tcp_be_liberal: false,
        udp: Duration::ZERO,
        udp_stream: Duration::ZERO,
    };

    /// The settings on a node with this number of CPUs.
    pub fn settings(&self, cpus: u32) -> Vec<Setting> {
        const SHORT: &str = "connections are tracked for another time than configured";
        let exactly = |name: &str, number: u64, without| {
            (number > 0).then(|| Setting::new(path(name), WantedValue::Exactly(number), without))
        };
        let timeouts = [
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        let timeouts = timeouts.map(|(name, time)| exactly(name, time.as_secs(), SHORT));
        let liberal = exactly(
            "nf_conntrack_tcp_be_liberal",
            u64::from(self.tcp_be_liberal),
            "packets outside a connection's window lose their translation",
        );
        self.room(cpus).into_iter().chain(timeouts.into_iter().flatten()).chain(liberal).collect()
    }

    /// The maximum of connections, and a hash table of a quarter of it, as in kube-proxy. Higher
    /// values stay: another program may need them.
    fn room(&self, cpus: u32) -> Vec<Setting> {
        const FULL: &str = "if the table is full, the kernel drops new connections";
        const SLOW: &str = "lookups are slow in a table that is small for its connections";
        if self.max_per_core == 0 {
            return Vec::new();
        }
        let max = (u64::from(self.max_per_core) * u64::from(cpus)).max(u64::from(self.min));
        vec![
            Setting::new(path("nf_conntrack_max"), WantedValue::AtLeast(max), FULL),
            Setting::new(path("nf_conntrack_buckets"), WantedValue::AtLeast(max / 4), SLOW),
        ]
    }
}

fn path(name: &str) -> String {
    format!("net/netfilter/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Conntrack = Conntrack { min: 131_072, ..Conntrack::UNCHANGED };

    #[test]
    fn zero_changes_nothing() {
        assert_eq!(NOTHING.settings(8), []);
    }

    #[test]
    fn room_grows_with_the_cpus_and_is_never_less_than_the_minimum() {
        let wanted_conntrack = Conntrack { max_per_core: 32_768, ..NOTHING };
        for (cpus, max) in [(1, 131_072), (4, 131_072), (5, 163_840), (64, 2_097_152)] {
            let wanted: Vec<_> = wanted_conntrack.settings(cpus).iter().map(|s| s.wanted).collect();
            assert_eq!(
                wanted,
                [WantedValue::AtLeast(max), WantedValue::AtLeast(max / 4)],
                "{cpus}"
            );
        }
    }

    #[test]
    fn every_timeout_is_in_seconds_in_its_own_file() {
        let wanted_conntrack = Conntrack {
            tcp_established: Duration::from_hours(24),
            tcp_close_wait: Duration::from_hours(1),
            tcp_be_liberal: true,
            udp: Duration::from_millis(30_500),
            udp_stream: Duration::from_millis(999),
            ..NOTHING
        };
        let settings = wanted_conntrack.settings(1);
        let found: Vec<_> = settings
            .iter()
            .map(|s| (s.path.trim_start_matches("net/netfilter/nf_conntrack_"), s.wanted))
            .collect();
        // Less than a second counts as 0: the kernel counts whole seconds.
        let expected = [
            ("tcp_timeout_established", WantedValue::Exactly(86_400)),
            ("tcp_timeout_close_wait", WantedValue::Exactly(3_600)),
            ("udp_timeout", WantedValue::Exactly(30)),
            ("tcp_be_liberal", WantedValue::Exactly(1)),
        ];
        assert_eq!(found, expected);
    }
}
