//! `KubeProxyConfiguration` v1alpha1, as clusters have it: fields that mean the same for this agent
//! are used, and warnings name the other fields.

use clap::Command;

use super::denizen::set;
use super::document::{FieldNameKind, FieldPosition, Value, YamlNode};
use super::{Contents, Problem};

/// The section that kube-proxy uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// For `iptables`, `ipvs`, and if no mode is set.
    Iptables,
    Nftables,
}

/// What a field means here.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// It has the meaning of this flag.
    Flag(&'static str),
    /// It has the meaning of this flag if kube-proxy uses this mode's section.
    In(Mode, &'static str),
    /// Its meaning depends on other fields: see [`Joint`].
    Together,
    /// It has no effect, for this reason.
    Nothing(&'static str),
}

use Meaning::{Flag, In, Nothing, Together};

const AT_ONCE: &str =
    "every change is programmed at once, and the kernel reports foreign changes of the rules";
const WATCHES: &str = "denizen watches the API in its own way";
const FOREIGN_SERVERS: &str = "virtual servers of others are always left alone";
const NO_ARP: &str =
    "no node answers ARP for virtual IPs: a rule of denizen's own drops the requests";
const AS_CONNTRACK: &str =
    "IPVS remembers idle connections as long as connection tracking: see conntrack's fields";
const WINDOWS: &str = "it is for Windows";
const LOGS: &str = "the environment variable RUST_LOG selects what is logged";
const UNIT: &str = "set it where the agent is started (unit file, pod spec)";

/// Every field (reference: kube-proxy's `pkg/proxy/apis/config` v1alpha1).
const FIELDS: &[(&str, Meaning)] = &[
    ("featureGates", Flag("feature-gates")),
    ("clientConnection.kubeconfig", Flag("kubeconfig")),
    ("clientConnection.acceptContentTypes", Nothing(WATCHES)),
    ("clientConnection.contentType", Nothing(WATCHES)),
    ("clientConnection.qps", Nothing(WATCHES)),
    ("clientConnection.burst", Nothing(WATCHES)),
    ("logging.format", Flag("log-format")),
    ("logging.flushFrequency", Nothing(LOGS)),
    ("logging.verbosity", Nothing(LOGS)),
    ("logging.vmodule", Nothing(LOGS)),
    ("logging.options", Nothing(LOGS)),
    ("hostnameOverride", Flag("node-name")),
    ("bindAddress", Nothing("both families are always served, at the node's addresses")),
    ("bindAddressHardFail", Nothing("an address that cannot be bound is reported and tried again")),
    ("healthzBindAddress", Flag("healthz-bind-address")),
    ("metricsBindAddress", Flag("metrics-bind-address")),
    ("enableProfiling", Nothing("there are no profiling endpoints")),
    ("showHiddenMetricsForVersion", Nothing("no metric is hidden")),
    ("mode", Together),
    ("detectLocalMode", Together),
    ("detectLocal.bridgeInterface", Together),
    ("detectLocal.interfaceNamePrefix", Together),
    ("clusterCIDR", Nothing("local pods are detected without it")),
    ("nodePortAddresses", Flag("nodeport-addresses")),
    ("oomScoreAdj", Nothing(UNIT)),
    ("configSyncPeriod", Nothing(WATCHES)),
    ("portRange", Nothing("no ports are opened for services")),
    ("windowsRunAsService", Nothing(WINDOWS)),
    ("iptables.masqueradeBit", In(Mode::Iptables, "masquerade-bit")),
    ("iptables.masqueradeAll", In(Mode::Iptables, "masquerade-all")),
    ("iptables.localhostNodePorts", In(Mode::Iptables, "iptables-localhost-nodeports")),
    ("iptables.syncPeriod", Nothing(AT_ONCE)),
    ("iptables.minSyncPeriod", Nothing(AT_ONCE)),
    ("nftables.masqueradeBit", In(Mode::Nftables, "masquerade-bit")),
    ("nftables.masqueradeAll", In(Mode::Nftables, "masquerade-all")),
    ("nftables.syncPeriod", Nothing(AT_ONCE)),
    ("nftables.minSyncPeriod", Nothing(AT_ONCE)),
    ("ipvs.syncPeriod", Nothing(AT_ONCE)),
    ("ipvs.minSyncPeriod", Nothing(AT_ONCE)),
    ("ipvs.scheduler", Flag("ipvs-scheduler")),
    ("ipvs.excludeCIDRs", Nothing(FOREIGN_SERVERS)),
    ("ipvs.strictARP", Nothing(NO_ARP)),
    ("ipvs.tcpTimeout", Nothing(AS_CONNTRACK)),
    ("ipvs.tcpFinTimeout", Nothing(AS_CONNTRACK)),
    ("ipvs.udpTimeout", Nothing(AS_CONNTRACK)),
    ("conntrack.maxPerCore", Flag("conntrack-max-per-core")),
    ("conntrack.min", Flag("conntrack-min")),
    ("conntrack.tcpEstablishedTimeout", Flag("conntrack-tcp-timeout-established")),
    ("conntrack.tcpCloseWaitTimeout", Flag("conntrack-tcp-timeout-close-wait")),
    ("conntrack.tcpBeLiberal", Flag("conntrack-tcp-be-liberal")),
    ("conntrack.udpTimeout", Flag("conntrack-udp-timeout")),
    ("conntrack.udpStreamTimeout", Flag("conntrack-udp-timeout-stream")),
    ("winkernel.networkName", Nothing(WINDOWS)),
    ("winkernel.sourceVip", Nothing(WINDOWS)),
    ("winkernel.enableDSR", Nothing(WINDOWS)),
    ("winkernel.rootHnsEndpointName", Nothing(WINDOWS)),
    ("winkernel.forwardHealthCheckVip", Nothing(WINDOWS)),
];

fn meaning(path: &str) -> Option<Meaning> {
    let found = FIELDS.iter().find(|(field, _)| *field == path);
    found.map(|(_, meaning)| *meaning)
}

/// The fields' names.
#[cfg(test)]
pub(super) fn fields() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(field, _)| *field)
}

/// The flags of the fields.
#[cfg(test)]
pub(super) fn flags() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().filter_map(|(_, meaning)| match meaning {
        Flag(flag) | In(_, flag) => Some(*flag),
        Together | Nothing(_) => None,
    })
}

/// The settings in a `KubeProxyConfiguration`. kubeadm writes every field, most of them empty: an
/// empty field is not set.
pub(super) fn contents(tree: &YamlNode, run: &Command) -> Contents {
    let is_section = |path: &str| {
        let mut fields = FIELDS.iter().filter_map(|(field, _)| field.split_once('.'));
        fields.any(|(section, _)| section == path)
    };
    let fields = tree.fields(&|path| match meaning(path) {
        Some(_) => FieldNameKind::Field,
        None if is_section(path) => FieldNameKind::Section,
        None => FieldNameKind::Unknown,
    });
    let mut contents = Contents { errors: fields.errors, ..Contents::default() };
    let unknown = |at| warning(at, "unknown field of v1alpha1: ignored");
    contents.warnings.extend(fields.unknown.into_iter().map(unknown));
    let together = Joint { all: &fields.known };
    together.set_backend(run, &mut contents);
    together.set_detector(run, &mut contents);
    let section = together.section();
    let is_set = |(_, value): &(FieldPosition, &Value)| !is_empty(value);
    for (at, value) in fields.known.into_iter().filter(is_set) {
        match meaning(&at.field).expect("it is known") {
            Flag(flag) => set(run, flag, at, value, &mut contents),
            In(mode, flag) if mode == section => set(run, flag, at, value, &mut contents),
            In(..) if is_zero(value) => {}
            In(..) => contents
                .warnings
                .push(warning(at, "ignored: kube-proxy does not use it in this mode either")),
            Nothing(_) if is_zero(value) => {}
            Nothing(why) => contents.warnings.push(warning(at, &format!("ignored: {why}"))),
            Together => {}
        }
    }
    contents
}

fn warning(at: FieldPosition, what: &str) -> Problem {
    let what = what.to_owned();
    Problem { at, what }
}

/// Whether kube-proxy treats this value as not set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Text(text) => text.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Map(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Integer(_) | Value::Float(_) => false,
    }
}

/// Whether this value requests nothing.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(value) => !value,
        Value::Integer(number) => *number == 0,
        Value::Float(number) => *number == 0.0,
        // The last two mean every address.
        Value::Text(text) => matches!(text.as_str(), "" | "0" | "0s" | "0.0.0.0" | "::"),
        Value::List(items) => items.iter().all(|item| is_zero(&item.value)),
        Value::Map(fields) => fields.iter().all(|(_, node)| is_zero(&node.value)),
        Value::Null => true,
    }
}

/// Fields that only have a meaning together.
struct Joint<'a> {
    all: &'a [(FieldPosition, &'a Value)],
}

impl Joint<'_> {
    /// A field's position and text. The text is empty if the field is not set.
    fn text(&self, field: &str) -> (FieldPosition, String) {
        let found = self.all.iter().find(|(at, _)| at.field == field);
        found.map_or_else(
            || (FieldPosition::of(field), String::new()),
            |(at, value)| (at.clone(), value.scalar().unwrap_or_else(|| value.kind().to_owned())),
        )
    }

    fn section(&self) -> Mode {
        if self.text("mode").1 == "nftables" { Mode::Nftables } else { Mode::Iptables }
    }

    fn set_backend(&self, run: &Command, contents: &mut Contents) {
        let (at, mode) = self.text("mode");
        match mode.as_str() {
            "" => {}
            "iptables" | "ipvs" | "nftables" => {
                set(run, "backend", at, &Value::Text(mode), contents)
            }
            _ => contents.errors.push(warning(
                at,
                &format!("{mode:?} is not a mode: use iptables, ipvs or nftables"),
            )),
        }
    }

    fn set_detector(&self, run: &Command, contents: &mut Contents) {
        let (at, mode) = self.text("detectLocalMode");
        let named = |field, what: &str, contents: &mut Contents| {
            let (place, name) = self.text(field);
            if name.is_empty() {
                let problem = format!("detectLocalMode {mode} needs it");
                contents.errors.push(warning(place, &problem));
            }
            format!("{what}={name}")
        };
        let (bridge, prefix) = ("detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix");
        let (detector, used) = match mode.as_str() {
            "" | "ClusterCIDR" => (None, None),
            "NodeCIDR" => (Some("node-cidr".to_owned()), None),
            "BridgeInterface" => (Some(named(bridge, "bridge", contents)), Some(bridge)),
            "InterfaceNamePrefix" => {
                (Some(named(prefix, "interface-prefix", contents)), Some(prefix))
            }
            _ => {
                let what = format!(
                    "{mode:?} is not a mode: use ClusterCIDR, NodeCIDR, BridgeInterface or \
                     InterfaceNamePrefix"
                );
                return contents.errors.push(warning(at, &what));
            }
        };
        if mode == "ClusterCIDR" {
            let what = "the cluster CIDR is ignored: local pods are detected exactly (pod-state)";
            contents.warnings.push(warning(at.clone(), what));
        }
        for field in [bridge, prefix].into_iter().filter(|field| used != Some(*field)) {
            let (place, name) = self.text(field);
            if !name.is_empty() {
                contents.warnings.push(warning(place, "ignored: detectLocalMode does not use it"));
            }
        }
        if let Some(detector) = detector {
            set(run, "detect-local", at, &Value::Text(detector), contents);
        }
    }
}
