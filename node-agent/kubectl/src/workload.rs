//! What a pod belongs to: the workload that made it, as an operator knows it.

use std::fmt;

use serde::Serialize;

use crate::objects::Metadata;

/// A Deployment, StatefulSet, DaemonSet, CronJob or whatever else owns pods; a pod without an owner
/// is its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Workload {
    pub namespace: String,
    pub name: String,
    pub kind: String,
}

impl Workload {
    /// The workload of a pod with this metadata.
    pub fn of(pod: &Metadata) -> Self {
        let mut owners = pod.owner_references.iter();
        let owner = owners.find(|owner| owner.controller).or(pod.owner_references.first());
        let (kind, name) = match owner {
            None => ("Pod", &*pod.name),
            // A static pod: its object is a mirror.
            Some(owner) if owner.kind == "Node" => ("Pod", &*pod.name),
            Some(owner) => {
                let hash = pod.labels.get("pod-template-hash").map(String::as_str);
                let deployment = hash.and_then(|hash| stem(&owner.name, |end| end == hash));
                let is_time = |end: &str| end.len() >= 8 && end.bytes().all(|c| c.is_ascii_digit());
                match (&*owner.kind, deployment, stem(&owner.name, is_time)) {
                    ("ReplicaSet", Some(deployment), _) => ("Deployment", deployment),
                    ("Job", _, Some(job)) => ("CronJob", job),
                    (kind, _, _) => (kind, &*owner.name),
                }
            }
        };
        let namespace = pod.namespace.clone();
        Self { namespace, name: name.to_owned(), kind: kind.to_owned() }
    }
}

/// A name without its last part, if that part `is_so`.
fn stem(name: &str, is_so: impl Fn(&str) -> bool) -> Option<&str> {
    let (stem, end) = name.rsplit_once('-')?;
    is_so(end).then_some(stem)
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_its_workloads() {
        let cases = [
            ("nobody's", json!([]), "Pod shop/web-5d4-x"),
            ("a Deployment's", json!([owner("ReplicaSet", "web-5d4")]), "Deployment shop/web"),
            ("of a ReplicaSet alone", json!([owner("ReplicaSet", "web")]), "ReplicaSet shop/web"),
            ("a CronJob's", json!([owner("Job", "backup-29382345")]), "CronJob shop/backup"),
            ("a Job's", json!([owner("Job", "backup-1")]), "Job shop/backup-1"),
            ("a static one", json!([owner("Node", "n1")]), "Pod shop/web-5d4-x"),
            ("a StatefulSet's", json!([owner("StatefulSet", "db")]), "StatefulSet shop/db"),
            (
                "of two owners, the controller's",
                json!([{ "kind": "Node", "name": "n1" }, owner("DaemonSet", "log")]),
                "DaemonSet shop/log",
            ),
        ];
        for (name, owners, expected) in cases {
            let labels = json!({ "pod-template-hash": "5d4" });
            let pod: Metadata = serde_json::from_value(json!({
                "name": "web-5d4-x", "namespace": "shop", "labels": labels,
                "ownerReferences": owners,
            }))
            .unwrap();
            assert_eq!(Workload::of(&pod).to_string(), expected, "{name}");
        }
    }

    fn owner(kind: &str, name: &str) -> serde_json::Value {
        json!({ "kind": kind, "name": name, "controller": true })
    }
}
