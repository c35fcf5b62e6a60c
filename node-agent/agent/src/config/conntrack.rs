//! kube-proxy's flags for connection tracking, with its defaults.

use std::time::Duration;

use clap::Args;

use denizen_backend::sysctl::Conntrack;
use denizen_text::duration;

/// Connection tracking's settings, as written. They are set once, at start.
#[derive(Debug, Clone, Args)]
pub struct ConntrackArgs {
    /// Maximum of tracked connections per CPU. A higher setting stays; 0 leaves the limit unchanged
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    pub conntrack_max_per_core: u32,

    /// Minimum for the limit that --conntrack-max-per-core yields
    #[arg(long, value_name = "N", default_value_t = 131_072)]
    pub conntrack_min: u32,

    /// How long a silent established TCP connection is tracked; 0 leaves the setting unchanged
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    pub conntrack_tcp_timeout_established: Duration,

    /// How long a TCP connection in CLOSE_WAIT is tracked; 0 leaves the setting unchanged
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// Track TCP packets outside the window as part of their connection
    #[arg(long)]
    pub conntrack_tcp_be_liberal: bool,

    /// How long an unanswered UDP flow is tracked; 0 leaves the setting unchanged
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub conntrack_udp_timeout: Duration,

    /// How long an answered UDP flow is tracked; 0 leaves the setting unchanged
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub conntrack_udp_timeout_stream: Duration,
}

impl ConntrackArgs {
    /// The requested settings.
    pub fn requested(&self) -> Conntrack {
        Conntrack {
            max_per_core: self.conntrack_max_per_core,
            min: self.conntrack_min,
            tcp_established: self.conntrack_tcp_timeout_established,
            tcp_close_wait: self.conntrack_tcp_timeout_close_wait,
            tcp_be_liberal: self.conntrack_tcp_be_liberal,
            udp: self.conntrack_udp_timeout,
            udp_stream: self.conntrack_udp_timeout_stream,
        }
    }
}
