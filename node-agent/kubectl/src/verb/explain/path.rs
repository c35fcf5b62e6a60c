//! Combines the agents' answers to paths. Pure.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::ends::AddressOwner;
use crate::no_answer::NoAnswer;

/// Whether the connection is permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ConnectionVerdict {
    Permitted,
    /// Permitted at some endpoints, and refused at others.
    Partly,
    Refused,
    /// An agent did not answer, or the connection leaves what is known.
    Unknown,
}

/// What an agent's `explain` says.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// `forward`, `untouched`, `drop`, `reject`, `foreign` or `unknown`.
    pub verdict: String,
    pub service: Option<String>,
    pub endpoints: Vec<String>,
    pub masquerade: bool,
    pub masqueraded: Vec<String>,
    pub policies: Vec<PolicyRow>,
    pub steps: Vec<ExplainStep>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainStep {
    pub what: String,
    pub why: String,
}

/// What policies say of one direction.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRow {
    pub direction: String,
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    pub isolated_by: Vec<String>,
    /// The rules of ClusterNetworkPolicies that match, up to the one that decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierRow>,
    /// `open`, `permitted`, `refused` or `pending`; `accepted` or `denied` by the last of `tiers`.
    pub result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
}

/// A rule of a ClusterNetworkPolicy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TierRow {
    pub tier: String,
    pub priority: u16,
    pub policy: String,
    pub rule: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub action: String,
}

/// What policies decide about one direction of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyOutcome {
    /// `open`, `permitted`, `refused`, `accepted`, `denied`, `pending`, or `unknown`.
    pub result: String,
    /// The policy and its rule, or why the node did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An agent's answer to `route`: how packets leave its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RouteAnswer {
    reachable: bool,
    interface: Option<String>,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
}

/// A node's route towards the other end of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathRoute {
    /// `there`, `missing` or `unknown`; `none` where both ends are on one node.
    pub result: &'static str,
    /// The gateway and the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[serde(skip)]
    source: Option<IpAddr>,
}

/// The path of packets to one endpoint.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPath {
    /// As `explain` takes it.
    pub endpoint: String,
    pub pod: Option<String>,
    /// `None` if the endpoint is on no node that is known.
    pub node: Option<String>,
    pub egress: PolicyOutcome,
    pub route: PathRoute,
    /// The source that the endpoint sees; `None` if that is not known.
    pub source: Option<IpAddr>,
    pub ingress: PolicyOutcome,
    #[serde(rename = "wayBack")]
    pub return_route: PathRoute,
    pub verdict: ConnectionVerdict,
    #[serde(skip)]
    pub target: SocketAddr,
}

impl ConnectionVerdict {
    pub fn of_all(mut paths: impl Iterator<Item = Self>) -> Self {
        let Some(first) = paths.next() else { return Self::Unknown };
        paths.fold(first, |all, path| match (all, path) {
            (one, other) if one == other => one,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Permitted | Self::Partly | Self::Refused, _) => Self::Partly,
        })
    }
}

impl fmt::Display for ConnectionVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permitted => "permitted",
            Self::Partly => "permitted at some endpoints alone",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        })
    }
}

impl Explanation {
    /// Where the packet may go, or what becomes of it at once. `destination` is where it is
    /// addressed to, if that is an address.
    pub fn targets(
        &self,
        destination: Option<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, ConnectionVerdict> {
        let endpoints = || self.endpoints.iter().filter_map(|end| end.parse().ok()).collect();
        match (&*self.verdict, destination) {
            ("forward", _) => Ok(endpoints()),
            ("untouched", Some(destination)) => Ok(vec![destination]),
            // Policies of this node refuse the connection, but each endpoint has its own reason.
            ("drop", _) if !self.endpoints.is_empty() && !self.policies.is_empty() => {
                Ok(endpoints())
            }
            ("drop", Some(destination)) if !self.policies.is_empty() => Ok(vec![destination]),
            ("drop" | "reject", _) => Err(ConnectionVerdict::Refused),
            _ => Err(ConnectionVerdict::Unknown),
        }
    }

    /// Whether this endpoint sees the node's address as the source.
    pub fn is_masqueraded(&self, target: SocketAddr) -> bool {
        match self.masqueraded.is_empty() {
            true => self.masquerade,
            false => self.masqueraded.iter().any(|end| end.parse() == Ok(target)),
        }
    }

    fn side(&self, direction: &str, target: SocketAddr) -> PolicyOutcome {
        let is_it = |row: &&PolicyRow| {
            let end = row.endpoint.as_ref().and_then(|end| end.parse::<SocketAddr>().ok());
            row.direction == direction && end.is_none_or(|end| end == target)
        };
        let rows = self.policies.iter().filter(is_it);
        // A row that refuses comes first: a pod may have several addresses.
        let row = rows.max_by_key(|row| ["refused", "denied", "pending"].contains(&&*row.result));
        row.map_or(PolicyOutcome { result: "open".to_owned(), why: None }, PolicyRow::side)
    }
}

impl PolicyRow {
    fn side(&self) -> PolicyOutcome {
        let Self { direction, pod, isolated_by, result, policy, rule, tiers, .. } = self;
        let why = match (&**result, policy, rule) {
            ("accepted" | "denied", ..) => tiers.last().map(|row| {
                let TierRow { tier, priority, policy, rule, name, action } = row;
                let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
                format!(
                    "{direction} of {pod}: ClusterNetworkPolicy {tier} {priority} {policy} \
                     {direction}[{rule}]{name} ({action})"
                )
            }),
            ("permitted", Some(policy), Some(rule)) => Some(format!(
                "{direction} of {pod}: permitted by {policy}, {direction} rule {rule}"
            )),
            ("refused", ..) => {
                let isolated = isolated_by.join(", ");
                Some(format!("{direction} of {pod}: no rule of {isolated} permits it"))
            }
            ("pending", ..) => {
                Some(format!("{direction} of {pod}: its policies are not known yet"))
            }
            _ => None,
        };
        PolicyOutcome { result: result.clone(), why }
    }
}

impl PolicyOutcome {
    fn unknown(why: &str) -> Self {
        Self { result: "unknown".to_owned(), why: Some(why.to_owned()) }
    }

    fn verdict(&self) -> ConnectionVerdict {
        match &*self.result {
            "open" | "permitted" | "accepted" => ConnectionVerdict::Permitted,
            "refused" | "denied" | "pending" => ConnectionVerdict::Refused,
            _ => ConnectionVerdict::Unknown,
        }
    }
}

impl PathRoute {
    const NONE: Self = Self { result: "none", via: None, why: None, source: None };

    /// `to`: the address that the route leads to.
    fn of(route: Result<RouteAnswer, NoAnswer>, to: IpAddr) -> Self {
        let none = Self::NONE;
        match route {
            Err(why) => Self { result: "unknown", why: Some(why.reason), ..none },
            Ok(RouteAnswer { reachable: false, .. }) => {
                Self { result: "missing", why: Some(format!("no route to {to}")), ..none }
            }
            Ok(RouteAnswer { interface, gateway, source, .. }) => {
                let interface = interface.unwrap_or_else(|| "?".to_owned());
                let via = match gateway {
                    Some(gateway) => format!("{gateway} ({interface})"),
                    None => interface,
                };
                Self { result: "there", via: Some(via), why: None, source }
            }
        }
    }

    fn is_missing(&self) -> bool {
        self.result == "missing"
    }

    fn cell(&self) -> String {
        self.via.clone().unwrap_or_else(|| self.result.to_owned())
    }
}

impl EndpointPath {
    /// The path as far as the sender's agent knows it.
    pub fn new(
        sent: &Explanation,
        endpoint: String,
        target: SocketAddr,
        owner: AddressOwner,
    ) -> Self {
        let egress = sent.side("egress", target);
        let why = match &owner.node {
            None => "it is on no node that is known",
            Some(_) if egress.verdict() == ConnectionVerdict::Refused => "it gets no further",
            Some(_) => "its node was not asked",
        };
        let AddressOwner { pod, node } = owner;
        let mut path = Self {
            endpoint,
            pod,
            node,
            egress,
            route: PathRoute::NONE,
            source: None,
            ingress: PolicyOutcome::unknown(why),
            return_route: PathRoute::NONE,
            verdict: ConnectionVerdict::Unknown,
            target,
        };
        path.verdict = path.combined_verdict();
        path
    }

    /// Notes how packets to the endpoint leave the sender's node.
    pub fn note_route(&mut self, route: Result<RouteAnswer, NoAnswer>) {
        self.route = PathRoute::of(route, self.target.ip());
        self.verdict = self.combined_verdict();
    }

    /// Notes that the sender's node has no route to the service's address `frontend`, if that is
    /// so.
    pub fn note_missing_frontend_route(
        &mut self,
        route: Result<RouteAnswer, NoAnswer>,
        frontend: IpAddr,
    ) {
        let route = PathRoute::of(route, frontend);
        if route.is_missing() {
            self.route = route;
            self.verdict = self.combined_verdict();
        }
    }

    /// The sender's node's address on that path.
    pub fn own_source(&self) -> Option<IpAddr> {
        self.route.source
    }

    /// Notes how packets to the source that the endpoint sees leave the receiver's node.
    pub fn note_return_route(&mut self, route: Result<RouteAnswer, NoAnswer>) {
        if let Some(source) = self.source {
            self.return_route = PathRoute::of(route, source);
            self.verdict = self.combined_verdict();
        }
    }

    /// Notes what the receiver's agent says.
    pub fn note_ingress(&mut self, received: &Explanation) {
        let side = received.side("ingress", self.target);
        self.ingress = match (&*received.verdict, side.verdict()) {
            ("untouched" | "forward", _) | ("drop", ConnectionVerdict::Refused) => side,
            ("drop" | "reject", _) => {
                let last = received.steps.last();
                let why = last.map(|step| format!("{}: {}", step.what, step.why));
                PolicyOutcome { result: "refused".to_owned(), why }
            }
            (other, _) => PolicyOutcome::unknown(&format!("its node's agent says: {other}")),
        };
        self.verdict = self.combined_verdict();
    }

    pub fn note_unknown_ingress(&mut self, why: &NoAnswer) {
        self.ingress = PolicyOutcome::unknown(&why.reason);
        self.verdict = self.combined_verdict();
    }

    /// Whether packets do not get to the receiver's node.
    pub fn is_refused(&self) -> bool {
        self.egress.verdict() == ConnectionVerdict::Refused || self.route.is_missing()
    }

    /// The first refusal in the packet's order; what is not known is never permitted.
    fn combined_verdict(&self) -> ConnectionVerdict {
        match (self.egress.verdict(), self.ingress.verdict()) {
            _ if self.is_refused() => ConnectionVerdict::Refused,
            (ConnectionVerdict::Permitted, ConnectionVerdict::Permitted)
                if self.return_route.is_missing() =>
            {
                ConnectionVerdict::Refused
            }
            (ConnectionVerdict::Permitted, ingress) => ingress,
            (
                ConnectionVerdict::Unknown | ConnectionVerdict::Partly | ConnectionVerdict::Refused,
                _,
            ) => ConnectionVerdict::Unknown,
        }
    }

    /// The reasons, in the order in which a packet meets them.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let reason =
            |route: &PathRoute, name: &str| route.why.as_ref().map(|why| format!("{name}: {why}"));
        let all = [
            self.egress.why.clone(),
            reason(&self.route, "route"),
            self.ingress.why.clone(),
            reason(&self.return_route, "way back"),
        ];
        all.into_iter().flatten()
    }

    pub fn cells(&self) -> Vec<String> {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
        vec![
            self.endpoint.clone(),
            or_unknown(&self.pod),
            or_unknown(&self.node),
            self.egress.result.clone(),
            self.route.cell(),
            or_unknown(&self.source.map(|source| source.to_string())),
            self.ingress.result.clone(),
            self.return_route.cell(),
            self.verdict.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests;
