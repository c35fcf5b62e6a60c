//! The flags for the detection of local traffic.

use std::convert::Infallible;
use std::sync::Arc;

use clap::Args;
use thiserror::Error;

use super::cidr::{NotACidr, cidrs};
use denizen_plan::Detector;

/// The flags, of which at most one is given.
#[derive(Debug, Clone, Args)]
pub struct DetectArgs {
    /// How local pods are detected: pod-state[=port-exact], bridge=NAME[,NAME…], bridge-port,
    /// interface-prefix=P[,P…], or node-cidr[=CIDR[,CIDR…]]
    #[arg(long, value_name = "MODE[=VALUE,…]", default_value = "pod-state", value_parser = detector)]
    pub detect_local: Detector,

    /// KEP-2450's name for --detect-local node-cidr=CIDR[,CIDR…]
    #[arg(long, value_name = "CIDR,…", conflicts_with = "detect_local", value_parser = node_cidr)]
    pub node_cidr: Option<Detector>,

    /// KEP-2450's name for --detect-local interface-prefix=P[,P…]
    #[arg(
        long,
        value_name = "PREFIX,…",
        conflicts_with_all = ["detect_local", "node_cidr"],
        value_parser = interface_prefix,
    )]
    pub pod_interface_prefix: Option<Detector>,

    /// Refused: denizen needs no cluster CIDR
    #[arg(long, hide = true, value_name = "CIDR", value_parser = cluster_cidr)]
    pub cluster_cidr: Option<Infallible>,
}

impl DetectArgs {
    /// How local traffic is detected, from whichever flag is given.
    pub fn detector(&self) -> &Detector {
        let by_alias = self.node_cidr.as_ref().or(self.pod_interface_prefix.as_ref());
        by_alias.unwrap_or(&self.detect_local)
    }
}

/// Why a value does not say how local traffic is detected. clap names the flag.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DetectorError {
    /// A cluster CIDR, which denizen does not use.
    #[error(
        "denizen needs no cluster CIDR: remove it. The default, pod-state, detects local pods \
         exactly. Other modes: --detect-local bridge=NAME, bridge-port, interface-prefix=PREFIX \
         or node-cidr"
    )]
    ClusterCidr,
    /// No such mode.
    #[error(
        "it is not a mode: use pod-state[=port-exact], bridge=NAME,…, bridge-port, \
         interface-prefix=PREFIX,… or node-cidr[=CIDR,…]"
    )]
    Mode,
    /// A mode needs a value, or accepts none.
    #[error("{mode}: {problem}")]
    Value { mode: &'static str, problem: String },
    #[error(transparent)]
    Cidr(#[from] NotACidr),
}

/// The mode that `text` names.
pub(super) fn detector(text: &str) -> Result<Detector, DetectorError> {
    let (mode, values) = match text.split_once('=') {
        Some((mode, values)) => (mode, Some(values)),
        None => (text, None),
    };
    let value = |mode, problem: String| Err(DetectorError::Value { mode, problem });
    match (mode, values) {
        ("pod-state", None) => Ok(Detector::PodState),
        ("pod-state", Some(value)) if value.trim() == "port-exact" => Ok(Detector::PodPort),
        ("pod-state", Some(_)) => value("pod-state", "its only value is port-exact".to_owned()),
        ("bridge-port", None) => Ok(Detector::BridgePort),
        ("bridge-port", Some(_)) => value("bridge-port", "it takes no value".to_owned()),
        ("bridge", Some(values)) => Ok(Detector::Bridge(names("bridge", values)?)),
        ("bridge", None) => value("bridge", "it needs a value, for example bridge=cni0".to_owned()),
        ("interface-prefix", Some(prefixes)) => interface_prefix(prefixes),
        ("interface-prefix", None) => value(
            "interface-prefix",
            "it needs a value, for example interface-prefix=veth".to_owned(),
        ),
        ("node-cidr", None) => Ok(Detector::NodeCidr(None)),
        ("node-cidr", Some(values)) => node_cidr(values),
        ("cluster-cidr", _) => Err(DetectorError::ClusterCidr),
        _ => Err(DetectorError::Mode),
    }
}

fn node_cidr(list: &str) -> Result<Detector, DetectorError> {
    Ok(Detector::NodeCidr(Some(cidrs(list)?)))
}

fn interface_prefix(prefixes: &str) -> Result<Detector, DetectorError> {
    Ok(Detector::InterfacePrefix(names("interface-prefix", prefixes)?))
}

fn cluster_cidr(_: &str) -> Result<Infallible, DetectorError> {
    Err(DetectorError::ClusterCidr)
}

fn names(mode: &'static str, list: &str) -> Result<Vec<Arc<str>>, DetectorError> {
    // IFNAMSIZ, without the terminating zero.
    const LONGEST: usize = 15;
    // Characters that the kernel forbids (dev_valid_name), or that nft's text cannot express.
    let strange =
        |c: char| matches!(c, '/' | ':' | '"' | '*') || c.is_whitespace() || c.is_control();
    let is_bad = |name: &str| name.is_empty() || name.len() > LONGEST || name.contains(strange);
    let name = |name: &str| match is_bad(name) {
        true => Err(DetectorError::Value {
            mode,
            problem: format!("{name:?} is not valid in an interface's name"),
        }),
        false => Ok(name.into()),
    };
    list.split(',').map(str::trim).map(name).collect()
}
