//! Connection tracking's settings, as kube-proxy's `conntrack` configuration names and means them.
//! Pure.

use std::time::Duration;

use super::setting::{Setting, Wanted};

/// What the operator asked of connection tracking. Zero leaves a setting as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections to have room for, for each CPU.
    pub max_per_core: u32,
    /// Connections to have room for at least, however few CPUs there are.
    pub min: u32,
    /// How long an established TCP connection that is silent is remembered.
    pub tcp_established: Duration,
    /// How long a TCP connection whose one end has closed is remembered.
    pub tcp_close_wait: Duration,
    /// Packets outside a TCP connection's window still belong to it: routing that is not symmetric
    /// makes such (kubernetes #74839, #117924). False leaves the setting as it is.
    pub tcp_be_liberal: bool,
    /// How long a single UDP datagram is remembered.
    pub udp: Duration,
    /// How long a UDP conversation is remembered.
    pub udp_stream: Duration,
}

impl Conntrack {
    /// The settings on a node with so many CPUs.
    pub fn settings(&self, cpus: u32) -> Vec<Setting> {
        const SHORT: &str = "connections are remembered for another time than was asked for";
        let exactly = |name: &str, number: u64, without| {
            (number > 0).then(|| Setting::new(path(name), Wanted::Exactly(number), without))
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

    /// Room for connections, and a hash table of a quarter of that, as kube-proxy has it. Never
    /// less than there is: another program may have asked for more.
    fn room(&self, cpus: u32) -> Vec<Setting> {
        const FULL: &str = "when the table is full the kernel drops new connections";
        const SLOW: &str = "a table that is small for its connections is slow";
        if self.max_per_core == 0 {
            return Vec::new();
        }
        let max = (u64::from(self.max_per_core) * u64::from(cpus)).max(u64::from(self.min));
        vec![
            Setting::new(path("nf_conntrack_max"), Wanted::AtLeast(max), FULL),
            Setting::new(path("nf_conntrack_buckets"), Wanted::AtLeast(max / 4), SLOW),
        ]
    }
}

fn path(name: &str) -> String {
    format!("net/netfilter/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Conntrack = Conntrack {
        max_per_core: 0,
        min: 131_072,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        tcp_be_liberal: false,
        udp: Duration::ZERO,
        udp_stream: Duration::ZERO,
    };

    #[test]
    fn zero_leaves_everything_as_it_is() {
        assert_eq!(NOTHING.settings(8), []);
    }

    #[test]
    fn room_grows_with_the_cpus_and_is_never_less_than_the_minimum() {
        let asked = Conntrack { max_per_core: 32_768, ..NOTHING };
        for (cpus, max) in [(1, 131_072), (4, 131_072), (5, 163_840), (64, 2_097_152)] {
            let wanted: Vec<_> = asked.settings(cpus).iter().map(|s| s.wanted).collect();
            assert_eq!(wanted, [Wanted::AtLeast(max), Wanted::AtLeast(max / 4)], "{cpus}");
        }
    }

    #[test]
    fn every_time_is_in_seconds_at_its_own_place() {
        let asked = Conntrack {
            tcp_established: Duration::from_hours(24),
            tcp_close_wait: Duration::from_hours(1),
            tcp_be_liberal: true,
            udp: Duration::from_millis(30_500),
            udp_stream: Duration::from_millis(999),
            ..NOTHING
        };
        let settings = asked.settings(1);
        let found: Vec<_> = settings
            .iter()
            .map(|s| (s.path.trim_start_matches("net/netfilter/nf_conntrack_"), s.wanted))
            .collect();
        // Less than a second is none: the kernel counts whole ones.
        let expected = [
            ("tcp_timeout_established", Wanted::Exactly(86_400)),
            ("tcp_timeout_close_wait", Wanted::Exactly(3_600)),
            ("udp_timeout", Wanted::Exactly(30)),
            ("tcp_be_liberal", Wanted::Exactly(1)),
        ];
        assert_eq!(found, expected);
    }
}
