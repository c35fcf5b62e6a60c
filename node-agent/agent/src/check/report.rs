//! Checks, their findings, and the page that shows them. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use denizen_text::Printable;

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckGroup {
    /// What this kernel, and the programs on it, can do.
    Kernel,
    /// The kernel's settings, and the room of connection tracking.
    Settings,
    /// Other programs that program the same things.
    OtherPrograms,
    /// The CNI plugin and its records.
    CniPlugin,
    /// The Kubernetes API, or the manifests in its place.
    Api,
    /// The running agent.
    Agent,
}

impl CheckGroup {
    fn title(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Settings => "settings",
            Self::OtherPrograms => "other programs",
            Self::CniPlugin => "CNI plugin",
            Self::Api => "API",
            Self::Agent => "agent",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    Permissions,
    Nftables,
    Iptables,
    Ipvs,
    BridgePorts,
    NetworkPolicy,
    ConntrackNetlink,
    BridgeModule,
    Forwarding,
    ConntrackRoom,
    ConntrackSettings,
    BridgeFilter,
    Vlans,
    ServiceProxies,
    PolicyEngines,
    ForwardChains,
    Announcing,
    Ports,
    CniConfiguration,
    Plugin,
    Records,
    Manifests,
    Server,
    Credentials,
    Rights,
    Node,
    Clock,
    Running,
    Rules,
    Status,
}

impl Topic {
    /// In the order in which they are checked.
    pub const ALL: [Self; 30] = [
        Self::Permissions,
        Self::Nftables,
        Self::Iptables,
        Self::Ipvs,
        Self::BridgePorts,
        Self::NetworkPolicy,
        Self::ConntrackNetlink,
        Self::BridgeModule,
        Self::Forwarding,
        Self::ConntrackRoom,
        Self::ConntrackSettings,
        Self::BridgeFilter,
        Self::Vlans,
        Self::ServiceProxies,
        Self::PolicyEngines,
        Self::ForwardChains,
        Self::Announcing,
        Self::Ports,
        Self::CniConfiguration,
        Self::Plugin,
        Self::Records,
        Self::Manifests,
        Self::Server,
        Self::Credentials,
        Self::Rights,
        Self::Node,
        Self::Clock,
        Self::Running,
        Self::Rules,
        Self::Status,
    ];

    /// The topic's group, and its name in the report.
    pub fn place(self) -> (CheckGroup, &'static str) {
        match self {
            Self::Permissions => (CheckGroup::Kernel, "permissions"),
            Self::Nftables => (CheckGroup::Kernel, "nftables"),
            Self::Iptables => (CheckGroup::Kernel, "iptables"),
            Self::Ipvs => (CheckGroup::Kernel, "ipvs"),
            Self::BridgePorts => (CheckGroup::Kernel, "bridge-ports"),
            Self::NetworkPolicy => (CheckGroup::Kernel, "network-policy"),
            Self::ConntrackNetlink => (CheckGroup::Kernel, "conntrack-netlink"),
            Self::BridgeModule => (CheckGroup::Kernel, "br-netfilter"),
            Self::Forwarding => (CheckGroup::Settings, "forwarding"),
            Self::ConntrackRoom => (CheckGroup::Settings, "conntrack-room"),
            Self::ConntrackSettings => (CheckGroup::Settings, "conntrack-settings"),
            Self::BridgeFilter => (CheckGroup::Settings, "bridge-filter"),
            Self::Vlans => (CheckGroup::Settings, "vlans"),
            Self::ServiceProxies => (CheckGroup::OtherPrograms, "service-proxies"),
            Self::PolicyEngines => (CheckGroup::OtherPrograms, "policy-engines"),
            Self::ForwardChains => (CheckGroup::OtherPrograms, "forward-chains"),
            Self::Announcing => (CheckGroup::OtherPrograms, "announcing"),
            Self::Ports => (CheckGroup::OtherPrograms, "ports"),
            Self::CniConfiguration => (CheckGroup::CniPlugin, "cni-configuration"),
            Self::Plugin => (CheckGroup::CniPlugin, "plugin"),
            Self::Records => (CheckGroup::CniPlugin, "records"),
            Self::Manifests => (CheckGroup::Api, "manifests"),
            Self::Credentials => (CheckGroup::Api, "credentials"),
            Self::Server => (CheckGroup::Api, "server"),
            Self::Rights => (CheckGroup::Api, "rights"),
            Self::Node => (CheckGroup::Api, "node"),
            Self::Clock => (CheckGroup::Api, "clock"),
            Self::Running => (CheckGroup::Agent, "running"),
            Self::Rules => (CheckGroup::Agent, "rules"),
            Self::Status => (CheckGroup::Agent, "status"),
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Something may not work, or not well.
    Warning,
    /// Something does not work.
    Failure,
    /// The check does not apply here, or cannot be made from here.
    Skipped,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "FAILURE",
            Self::Skipped => "skipped",
        }
    }
}

/// A verdict, its reason, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    pub reason: String,
    /// What to do about it; `None` if there is nothing to do.
    pub advice: Option<String>,
    /// A code that is the same on each node with this finding; conf/reference/check.md lists them.
    /// `None` if nothing is wrong, or if the reason is another program's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The parts of [`Self::reason`] that differ from node to node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<&'static str, String>,
}

impl Finding {
    pub fn ok(reason: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, reason.into(), None)
    }

    /// It does not apply, or cannot be known.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Self::new(Verdict::Skipped, reason.into(), None)
    }

    /// Something may not work.
    pub fn warning(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, reason.into(), Some(advice.into()))
    }

    /// Something does not work.
    pub fn failure(reason: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Failure, reason.into(), Some(advice.into()))
    }

    /// Adds a code, and the parts of the reason that differ from node to node.
    pub fn coded(
        self,
        code: &'static str,
        parameters: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        Self { code: Some(code), parameters: parameters.into_iter().collect(), ..self }
    }

    fn new(verdict: Verdict, reason: String, advice: Option<String>) -> Self {
        Self { verdict, reason, advice, code: None, parameters: BTreeMap::new() }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub group: CheckGroup,
    /// The name. A check with several findings is listed several times.
    pub name: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

impl Check {
    pub fn new(topic: Topic, finding: Finding) -> Self {
        let (group, name) = topic.place();
        Self { group, name, finding }
    }
}

/// All checks, by group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    /// How many checks have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.finding.verdict == verdict).count()
    }

    /// Whether a finding already has this text.
    pub(super) fn says(&self, text: &str) -> bool {
        self.checks.iter().any(|check| check.finding.reason == text)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = None;
        for Check { group: its, name, finding } in &self.checks {
            if group.replace(*its) != Some(*its) {
                writeln!(f, "{}", its.title())?;
            }
            let Finding { verdict, reason, advice, .. } = finding;
            writeln!(f, "  {:<8} {name:<19} {}", verdict.word(), Printable(reason))?;
            if let Some(advice) = advice {
                writeln!(f, "  {:<8} {:<19} what to do: {}", "", "", Printable(advice))?;
            }
        }
        let [ok, warnings, failures, skipped] =
            [Verdict::Ok, Verdict::Warning, Verdict::Failure, Verdict::Skipped]
                .map(|verdict| self.count(verdict));
        writeln!(f, "ok {ok}, warning {warnings}, failure {failures}, skipped {skipped}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_page_by_group_with_what_to_do() {
        let checks = vec![
            Check::new(Topic::Permissions, Finding::ok("CAP_NET_ADMIN is there")),
            Check::new(Topic::Iptables, Finding::skipped("not needed")),
            Check::new(Topic::Ports, Finding::warning("taken\u{1b}", "stop it")),
            Check::new(Topic::Running, Finding::failure("no agent", "start it")),
        ];
        let report = Report { checks };
        let expected = "\
kernel
  ok       permissions         CAP_NET_ADMIN is there
  skipped  iptables            not needed
other programs
  warning  ports               taken\\u{1b}
                               what to do: stop it
agent
  FAILURE  running             no agent
                               what to do: start it
ok 1, warning 1, failure 1, skipped 1
";
        assert_eq!(report.to_string(), expected);
    }

    /// Programs that check many nodes group their findings by code.
    #[test]
    fn the_page_has_all_codes_and_no_other() {
        let sources = [
            include_str!("agent.rs"),
            include_str!("api.rs"),
            include_str!("kernel.rs"),
            include_str!("networkd.rs"),
            include_str!("others.rs"),
            include_str!("plugin.rs"),
            include_str!("routing.rs"),
            include_str!("settings.rs"),
        ];
        let calls = sources.iter().flat_map(|source| source.split(".coded(").skip(1));
        let codes: std::collections::BTreeSet<&str> =
            calls.filter_map(|call| call.split('"').nth(1)).collect();
        let page = include_str!("../../../../conf/reference/check.md");
        let (_, section) = page.split_once("\n## Codes\n").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let named = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(codes, named);
        assert!(codes.len() > 40, "{codes:?}");
    }

    #[test]
    fn topics_are_in_the_order_of_their_groups_and_their_names_differ() {
        let places = Topic::ALL.map(Topic::place);
        let mut groups: Vec<CheckGroup> = places.iter().map(|(group, _)| *group).collect();
        groups.dedup();
        assert_eq!(groups.len(), 6, "{groups:?}");
        let names: std::collections::BTreeSet<_> = places.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), places.len());
    }
}
