//! The addresses that serve HTTP.

use std::net::{IpAddr, SocketAddr};

use clap::Args;

use super::ConfigError;

/// kube-proxy's ports.
const HEALTH_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// A port that kube-proxy does not have.
const PROBE_PORT: u16 = 20257;

/// The addresses that serve HTTP, as written.
#[derive(Debug, Clone, Args)]
pub struct ListenArgs {
    /// Address of /healthz and /livez, for load balancers. Empty: none
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: String,

    /// Address of /metrics. Empty: none
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: String,

    /// Address of /denizen/ready and /denizen/live, for the kubelet's probes of this agent. Empty:
    /// none
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:20257")]
    pub probe_bind_address: String,
}

/// The addresses that serve HTTP, checked; `None` for none. 0.0.0.0 stands for every address of
/// both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// `/healthz` and `/livez`.
    pub health: Option<SocketAddr>,
    /// `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// `/denizen/ready` and `/denizen/live`.
    pub probe: Option<SocketAddr>,
}

impl ListenArgs {
    /// Checks the addresses.
    ///
    /// # Errors
    /// [`ConfigError::Listen`].
    pub fn check(&self) -> Result<Listen, ConfigError> {
        Ok(Listen {
            health: address("--healthz-bind-address", &self.healthz_bind_address, HEALTH_PORT)?,
            metrics: address("--metrics-bind-address", &self.metrics_bind_address, METRICS_PORT)?,
            probe: address("--probe-bind-address", &self.probe_bind_address, PROBE_PORT)?,
        })
    }
}

fn address(flag: &'static str, text: &str, port: u16) -> Result<Option<SocketAddr>, ConfigError> {
    let text = text.trim();
    let alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, port));
    match text.parse().or_else(|_| alone()) {
        _ if text.is_empty() => Ok(None),
        Ok(at) => Ok(Some(at)),
        Err(_) => Err(ConfigError::Listen { flag, value: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_a_port_and_empty_means_none() {
        let cases = [
            ("0.0.0.0:10256", Ok(Some("0.0.0.0:10256"))),
            ("127.0.0.1", Ok(Some("127.0.0.1:9"))),
            ("::1", Ok(Some("[::1]:9"))),
            ("[::]:1", Ok(Some("[::]:1"))),
            ("", Ok(None)),
            ("localhost:1", Err(())),
            (":10256", Err(())),
            ("1.2.3.4:99999", Err(())),
        ];
        for (text, expected) in cases {
            let found = address("--flag", text, 9).map_err(|error| {
                assert!(error.to_string().contains(&format!("--flag: {text:?}")), "{error}");
            });
            let found = found.map(|at| at.map(|at| at.to_string()));
            assert_eq!(found, expected.map(|at| at.map(str::to_owned)), "{text}");
        }
    }
}
