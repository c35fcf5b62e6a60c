//! The resources that the tests' server has.

use anyhow::{Context, Result};
use serde_json::Value;

/// A resource, as discovery names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// `v1` or `group/v1`.
    pub version: &'static str,
    /// The name in paths.
    pub plural: &'static str,
    /// The name in objects.
    pub kind: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

/// All resources.
pub const RESOURCES: [Resource; 10] = [
    Resource { version: "v1", plural: "services", kind: "Service", namespaced: true },
    Resource { version: "v1", plural: "nodes", kind: "Node", namespaced: false },
    Resource { version: "v1", plural: "pods", kind: "Pod", namespaced: true },
    Resource { version: "v1", plural: "namespaces", kind: "Namespace", namespaced: false },
    Resource {
        version: "networking.k8s.io/v1",
        plural: "networkpolicies",
        kind: "NetworkPolicy",
        namespaced: true,
    },
    // For a kube-proxy before 1.21. An object is served in the version in which it was put.
    Resource {
        version: "discovery.k8s.io/v1beta1",
        plural: "endpointslices",
        kind: "EndpointSlice",
        namespaced: true,
    },
    Resource {
        version: "discovery.k8s.io/v1",
        plural: "endpointslices",
        kind: "EndpointSlice",
        namespaced: true,
    },
    Resource {
        version: "networking.k8s.io/v1",
        plural: "servicecidrs",
        kind: "ServiceCIDR",
        namespaced: false,
    },
    // Served only if the server's behaviour says so.
    Resource {
        version: "policy.networking.k8s.io/v1alpha2",
        plural: "clusternetworkpolicies",
        kind: "ClusterNetworkPolicy",
        namespaced: false,
    },
    Resource { version: "events.k8s.io/v1", plural: "events", kind: "Event", namespaced: true },
];

impl Resource {
    /// The resource of an object.
    pub fn of(object: &Value) -> Result<Self> {
        let found = RESOURCES.into_iter().find(|resource| {
            object["kind"] == resource.kind && object["apiVersion"] == resource.version
        });
        found.with_context(|| format!("no resource of {} {}", object["apiVersion"], object["kind"]))
    }

    /// The path of a version: discovery and objects are below it.
    pub fn prefix(version: &str) -> String {
        let root = if version == "v1" { "/api" } else { "/apis" };
        format!("{root}/{version}")
    }
}

/// The path of an object.
pub fn path_of(object: &Value) -> Result<String> {
    let resource = Resource::of(object)?;
    let metadata = |key: &str| {
        let text = object["metadata"][key].as_str();
        text.with_context(|| format!("no metadata.{key}: {object}"))
    };
    let namespace = match resource.namespaced {
        true => format!("namespaces/{}/", metadata("namespace")?),
        false => String::new(),
    };
    let (prefix, plural, name) =
        (Resource::prefix(resource.version), resource.plural, metadata("name")?);
    Ok(format!("{prefix}/{namespace}{plural}/{name}"))
}

/// What a path is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTarget {
    pub resource: Resource,
    /// Only in this namespace.
    pub namespace: Option<String>,
    /// Only the object of this name.
    pub name: Option<String>,
}

impl PathTarget {
    /// Parses paths such as `/api/v1/namespaces/default/services/web`.
    pub fn parse(path: &str) -> Option<Self> {
        let resource = |rest: &str, plural: &str| {
            let (version, below) =
                RESOURCES.iter().map(|resource| resource.version).find_map(|version| {
                    let below = rest.strip_prefix(&Resource::prefix(version))?;
                    below.starts_with('/').then_some((version, below))
                })?;
            let found = RESOURCES
                .into_iter()
                .find(|resource| resource.version == version && resource.plural == plural)?;
            Some((found, below.to_owned()))
        };
        let words: Vec<&str> = path.trim_matches('/').split('/').collect();
        let is_plural = |word: &&&str| RESOURCES.iter().any(|resource| resource.plural == **word);
        // A path that goes on after a namespace's name refers to something in that namespace.
        let within = words.iter().position(|word| *word == "namespaces").map(|at| at + 2);
        let within = within.filter(|at| *at < words.len()).unwrap_or(0);
        let plural = words[within..].iter().find(is_plural)?;
        let (resource, below) = resource(path, plural)?;
        let parts: Vec<&str> = below.trim_matches('/').split('/').collect();
        let owned = |text: &&str| (*text).to_owned();
        match parts.as_slice() {
            [_] => Some((None, None)),
            [_, name] => Some((None, Some(owned(name)))),
            ["namespaces", namespace, _] => Some((Some(owned(namespace)), None)),
            ["namespaces", namespace, _, name] => Some((Some(owned(namespace)), Some(owned(name)))),
            _ => None,
        }
        .map(|(namespace, name)| Self { resource, namespace, name })
    }
}
