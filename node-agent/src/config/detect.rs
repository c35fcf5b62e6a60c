//! Parses `--detect-local`.

use std::sync::Arc;

use super::{ConfigError, cidrs};
use crate::plan::Detector;

/// The mode that `text` names.
pub(super) fn detector(text: &str) -> Result<Detector, ConfigError> {
    let (mode, values) = match text.split_once('=') {
        Some((mode, values)) => (mode, Some(values.split(',').map(str::trim).collect::<Vec<_>>())),
        None => (text, None),
    };
    match (mode, values) {
        ("pod-state", None) => Ok(Detector::PodState),
        ("pod-state", Some(values)) if values == ["port-exact"] => Ok(Detector::PodPort),
        ("pod-state", Some(_)) => Err(ConfigError::Value {
            mode: "pod-state",
            problem: "its only value is port-exact".to_owned(),
        }),
        ("bridge-port", None) => Ok(Detector::BridgePort),
        ("bridge-port", Some(_)) => {
            Err(ConfigError::Value { mode: "bridge-port", problem: "it takes no value".to_owned() })
        }
        ("bridge", values) => Ok(Detector::Bridge(names("bridge", "cni0", values)?)),
        ("interface-prefix", values) => {
            Ok(Detector::InterfacePrefix(names("interface-prefix", "veth", values)?))
        }
        ("node-cidr", None) => Ok(Detector::NodeCidr(None)),
        ("node-cidr", Some(values)) => {
            Ok(Detector::NodeCidr(Some(cidrs("--detect-local node-cidr", values)?)))
        }
        ("cluster-cidr", _) => Err(ConfigError::ClusterCidr("--detect-local cluster-cidr")),
        _ => Err(ConfigError::Mode(text.to_owned())),
    }
}

fn names(
    mode: &'static str,
    example: &str,
    values: Option<Vec<&str>>,
) -> Result<Vec<Arc<str>>, ConfigError> {
    // IFNAMSIZ, without the terminating zero.
    const LONGEST: usize = 15;
    // Characters that the kernel forbids (dev_valid_name), or that nft's text cannot express.
    let strange =
        |c: char| matches!(c, '/' | ':' | '"' | '*') || c.is_whitespace() || c.is_control();
    let Some(values) = values else {
        return Err(ConfigError::Value {
            mode,
            problem: format!("it needs a value, for example {mode}={example}"),
        });
    };
    match values
        .iter()
        .find(|name| name.is_empty() || name.len() > LONGEST || name.contains(strange))
    {
        Some(bad) => Err(ConfigError::Value {
            mode,
            problem: format!("{bad:?} is not valid in an interface's name"),
        }),
        None => Ok(values.into_iter().map(Arc::from).collect()),
    }
}
