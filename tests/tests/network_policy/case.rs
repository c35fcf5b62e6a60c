//! A case: changes of a cluster, and what is to be true after each.

use anyhow::{Context, Result};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{
    Labels, NetworkPolicy, ObjectMeta, PolicyPacket, PolicyWorld, Transport, allowed,
};

use crate::hosts::{self, Hosts, PORTS};
use crate::truth::Denied;

pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// One case of a suite. It begins with the nine pods and no policy.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

/// Changes made at once, and what is expected of them.
#[derive(Debug, Clone, Default)]
pub struct Step {
    pub changes: Vec<Change>,
    pub expected: Vec<Expected>,
}

/// What is true of one port of every pod, or of pings, for every sender.
#[derive(Debug, Clone)]
pub struct Expected {
    pub transport: Transport,
    /// `None` leaves it to the oracle.
    pub denied: Option<Denied>,
}

/// One change.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "few are there at a time")]
pub enum Change {
    Put(NetworkPolicy),
    Delete {
        namespace: String,
        policy: String,
    },
    LabelPod {
        namespace: String,
        pod: String,
        labels: Labels,
    },
    LabelNamespace {
        namespace: String,
        labels: Labels,
    },
    AddPod {
        namespace: String,
        pod: String,
    },
    DeletePod {
        namespace: String,
        pod: String,
    },
    /// With a label `ns`.
    AddNamespace {
        namespace: String,
        label: String,
    },
    /// And its policies; its pods are to be deleted first.
    DeleteNamespace {
        namespace: String,
    },
}

impl Case {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), steps: Vec::new() }
    }

    /// The next change. After an expectation it begins a new step.
    #[must_use]
    pub fn then(mut self, change: Change) -> Self {
        if self.steps.last().is_none_or(|step| !step.expected.is_empty()) {
            self.steps.push(Step::default());
        }
        let step = self.steps.last_mut().expect("one was added if there was none");
        step.changes.push(change);
        self
    }

    /// The next change is this policy, new or in the place of one with its name.
    #[must_use]
    pub fn put(self, policy: NetworkPolicy) -> Self {
        self.then(Change::Put(policy))
    }

    /// Of a port, this text of [`Denied`] is true.
    ///
    /// # Panics
    /// When the text is wrong, or nothing was changed yet.
    #[must_use]
    pub fn expect(mut self, protocol: Protocol, port: u16, denied: &str) -> Self {
        let denied = Some(Denied::parse(denied).expect("a table of this test"));
        let step = self.steps.last_mut().expect("something was changed");
        let transport = Transport::Port(protocol, port);
        step.expected.push(Expected { transport, denied });
        self
    }

    /// Of all six ports, what the oracle says is true.
    ///
    /// # Panics
    /// When nothing was changed yet.
    #[must_use]
    pub fn expect_oracle(mut self) -> Self {
        let step = self.steps.last_mut().expect("something was changed");
        step.expected = all_ports().collect();
        self
    }
}

/// All six ports, of which the oracle says what is true.
pub fn all_ports() -> impl Iterator<Item = Expected> {
    let all = PORTS
        .into_iter()
        .flat_map(|port| PROTOCOLS.map(|protocol| Transport::Port(protocol, port)));
    all.map(|transport| Expected { transport, denied: None })
}

/// Packets to all ports, and pings, as the oracle has them.
pub fn everything() -> Vec<Expected> {
    all_ports().chain([Expected { transport: Transport::Other, denied: None }]).collect()
}

impl Change {
    /// Makes the change.
    pub fn apply(&self, world: &mut PolicyWorld, hosts: &mut dyn Hosts) -> Result<()> {
        match self {
            Self::Put(policy) => world.put_policy(policy.clone()),
            Self::Delete { namespace, policy } => {
                world.policies.retain(|other| !other.metadata.is(namespace, policy));
            }
            Self::LabelPod { namespace, pod, labels } => {
                let mut pods = world.pods.iter_mut();
                let found = pods.find(|other| other.metadata.is(namespace, pod));
                found.context("no such pod")?.metadata.labels = labels.clone();
            }
            Self::LabelNamespace { namespace, labels } => {
                let mut namespaces = world.namespaces.iter_mut();
                let found = namespaces.find(|other| other.metadata.name == *namespace);
                found.context("no such namespace")?.metadata.labels = labels.clone();
            }
            Self::AddPod { namespace, pod } => {
                world.pods.push(hosts::pod(hosts, namespace, pod)?);
            }
            Self::DeletePod { namespace, pod } => {
                world.pods.retain(|other| !other.metadata.is(namespace, pod));
                hosts.remove(namespace, pod)?;
            }
            Self::AddNamespace { namespace, label } => {
                world.namespaces.push(hosts::namespace(namespace, label));
            }
            Self::DeleteNamespace { namespace } => {
                world.namespaces.retain(|other| other.metadata.name != *namespace);
                world.policies.retain(|policy| policy.metadata.namespace != *namespace);
            }
        }
        Ok(())
    }
}

impl Expected {
    /// Whether a packet of this kind is to arrive, by the table or by the oracle. `number` says
    /// which of the pods' addresses it is about.
    pub fn holds(&self, world: &PolicyWorld, from: usize, to: usize, number: usize) -> bool {
        let (sender, receiver) = (&world.pods[from], &world.pods[to]);
        match &self.denied {
            Some(denied) => !denied.has(&full(&sender.metadata), &full(&receiver.metadata)),
            None => allowed(
                world,
                PolicyPacket {
                    from: sender.status.pod_ips[number].ip,
                    to: receiver.status.pod_ips[number].ip,
                    transport: self.transport,
                },
            ),
        }
    }
}

/// `namespace/name`.
pub fn full(metadata: &ObjectMeta) -> String {
    format!("{}/{}", metadata.namespace, metadata.name)
}

/// Labels, written in a row.
pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
