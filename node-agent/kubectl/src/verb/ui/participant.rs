//! The participants of connections: the boxes of the picture.

use std::fmt;

/// A box.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Participant {
    /// Addresses that are no pod's, no service's and no node's: clients or servers.
    Outside {
        is_client: bool,
    },
    /// A node itself, and the pods in its network.
    Node(String),
    /// Pods with one owner.
    Workload {
        namespace: String,
        name: String,
    },
    Service {
        namespace: String,
        name: String,
    },
    /// The members of a group that are not drawn one by one.
    Rest(FoldedGroup),
}

/// A group of participants that is folded into one box.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoldedGroup {
    Namespace(String),
    Nodes,
    /// Namespaces that have no box of their own.
    OtherNamespaces,
}

impl Participant {
    /// The group that the participant may be folded into; `None` if it never is.
    pub fn group(&self) -> Option<FoldedGroup> {
        match self {
            Self::Outside { .. } => None,
            Self::Node(_) => Some(FoldedGroup::Nodes),
            Self::Workload { namespace, .. } | Self::Service { namespace, .. } => {
                Some(FoldedGroup::Namespace(namespace.clone()))
            }
            Self::Rest(group) => Some(group.clone()),
        }
    }

    /// The same participant as the destination of an edge.
    pub fn into_destination(self) -> Self {
        match self {
            Self::Outside { .. } => Self::Outside { is_client: false },
            Self::Node(_) | Self::Workload { .. } | Self::Service { .. } | Self::Rest(_) => self,
        }
    }

    pub fn is_in(&self, namespace: &str) -> bool {
        matches!(self.group(), Some(FoldedGroup::Namespace(own)) if own == namespace)
    }

    /// The class of the box, for the style.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Outside { .. } => "outside",
            Self::Node(_) => "node",
            Self::Workload { .. } => "workload",
            Self::Service { .. } => "service",
            Self::Rest(_) => "rest",
        }
    }

    /// The first line of the box.
    pub fn title(&self) -> String {
        match self {
            Self::Outside { .. } => "outside".to_owned(),
            Self::Node(name) | Self::Workload { name, .. } | Self::Service { name, .. } => {
                name.clone()
            }
            Self::Rest(FoldedGroup::Namespace(namespace)) => namespace.clone(),
            Self::Rest(FoldedGroup::Nodes) => "nodes".to_owned(),
            Self::Rest(FoldedGroup::OtherNamespaces) => "other namespaces".to_owned(),
        }
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { .. } => f.write_str("outside"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::Workload { namespace, name } => write!(f, "{namespace}/{name}"),
            Self::Service { namespace, name } => write!(f, "service {namespace}/{name}"),
            Self::Rest(FoldedGroup::Namespace(namespace)) => write!(f, "the rest of {namespace}"),
            Self::Rest(FoldedGroup::Nodes) => f.write_str("other nodes"),
            Self::Rest(FoldedGroup::OtherNamespaces) => f.write_str("other namespaces"),
        }
    }
}
