//! What policies decide by: from the API, or from a folder of manifests.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::Context;
use denizen_model::{Event, PodName};
use denizen_object::{DecodedObject, Decoder, ObjectKey, ObjectKind, RawObject};
use serde_json::value::RawValue;

use super::manifest::{self, FileObject};
use crate::cluster::Api;
use crate::objects::{self, PodObject};
use crate::workload::Workload;

/// Maximum number of notes about objects that are understood in part.
const NOTES: usize = 20;

/// The lists that the API is asked for, and the kind as which each list is decoded.
const LISTS: [(ObjectKind, &str); 5] = [
    (ObjectKind::Namespace, "/api/v1/namespaces"),
    (ObjectKind::OtherNode, "/api/v1/nodes"),
    (ObjectKind::NetworkPolicy, "/apis/networking.k8s.io/v1/networkpolicies"),
    (
        ObjectKind::ClusterNetworkPolicy,
        "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
    ),
    (ObjectKind::Pod, "/api/v1/pods"),
];

#[derive(Debug, Default)]
pub struct ImpactFacts {
    pub events: Vec<Event>,
    pub workloads: HashMap<PodName, Workload>,
    /// The node of each pod.
    pub nodes: HashMap<PodName, String>,
    /// What is not used or not known, and what that means.
    pub notes: Vec<String>,
}

impl ImpactFacts {
    pub async fn of_cluster(api: &Api) -> anyhow::Result<Self> {
        let (mut facts, mut decoder) = (Self::default(), manifest::decoder());
        for (kind, path) in LISTS {
            let list = objects::list::<Box<RawValue>>(&api.client, path, &[]).await;
            let list = match list {
                // Its CustomResourceDefinition is not there.
                Err(kube::Error::Api(status))
                    if status.code == 404 && kind == ObjectKind::ClusterNetworkPolicy =>
                {
                    continue;
                }
                Err(kube::Error::Api(status))
                    if status.code == 403 && kind == ObjectKind::OtherNode =>
                {
                    facts.notes.push(format!(
                        "nodes are not judged, and rules that name them match nobody: {} (needs: \
                         list nodes)",
                        status.message
                    ));
                    continue;
                }
                list => list.with_context(|| format!("cannot list {}", kind.plural()))?,
            };
            for text in list {
                facts.take(&RawObject::json(kind, text.get()), &mut decoder);
            }
        }
        facts.shorten_notes();
        Ok(facts)
    }

    fn take(&mut self, raw: &RawObject<'_>, decoder: &mut Decoder) {
        let mut warnings = Vec::new();
        let decoded = raw.decode(decoder, &mut warnings);
        self.notes.extend(warnings.iter().map(ToString::to_string));
        match decoded {
            Ok(Some(decoded)) => self.add(raw, decoded),
            Ok(None) => {}
            Err(error) => self.notes.push(denizen_text::describe(&error)),
        }
    }

    fn add(&mut self, raw: &RawObject<'_>, decoded: DecodedObject) {
        if let ObjectKey::Pod(name) = &decoded.key
            && let Ok(PodObject { mut metadata, spec, .. }) = raw.written::<PodObject>()
        {
            metadata.namespace = name.namespace.to_string();
            self.nodes.insert(name.clone(), spec.node_name);
            self.workloads.insert(name.clone(), Workload::of(&metadata));
        }
        self.events.push(decoded.event);
    }

    /// As the agent reads such a folder: what is wrong is left out, and of two objects with one
    /// name the first counts.
    pub fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        let (mut facts, mut decoder) = (Self::default(), manifest::decoder());
        let mut seen = HashSet::new();
        for (file, format, text) in manifest::folder(folder)? {
            let mut take = |FileObject { raw, decoded }: FileObject<'_, '_>| match seen
                .insert(decoded.key.clone())
            {
                true => facts.add(raw, decoded),
                false => {
                    let note = format!("{file}: duplicate of {}, left out", decoded.key);
                    facts.notes.push(note);
                }
            };
            // Each Node is decoded as another node's.
            let is_asked =
                |kind| kind == ObjectKind::Node || LISTS.iter().any(|(listed, _)| *listed == kind);
            let source = (format, &*text);
            let problems = manifest::each(&file, source, &mut decoder, is_asked, &mut take);
            facts.notes.extend(problems.broken.into_iter().chain(problems.parts));
        }
        facts.shorten_notes();
        Ok(facts)
    }

    fn shorten_notes(&mut self) {
        let more = self.notes.len().saturating_sub(NOTES);
        self.notes.truncate(NOTES);
        self.notes.extend((more > 0).then(|| format!("and {more} more")));
    }
}
