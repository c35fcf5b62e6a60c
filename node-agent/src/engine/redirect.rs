//! Pods that have a mesh's proxy, and that the plugin has not redirected to it. Pure.

use std::collections::BTreeSet;

use crate::model::LocalPod;

/// The most pods that the warning names.
const NAMED: usize = 5;

/// Pods that were attached without denizen, and whose annotations ask for what it does to other
/// pods of this node. A profile that redirects none may belong to another program, such as
/// linkerd-init.
pub(super) fn lacking(pods: &[LocalPod]) -> Vec<&LocalPod> {
    let redirects = pods.iter().filter_map(|pod| pod.redirect.as_deref());
    let in_use: BTreeSet<&str> = redirects.map(|redirect| redirect.profile.as_str()).collect();
    let lacks = |pod: &&LocalPod| pod.sidecar.as_deref().is_some_and(|it| in_use.contains(it));
    pods.iter().filter(lacks).collect()
}

/// The warning of `status`; `None` if there are no such pods.
pub(super) fn warning(pods: &[&LocalPod]) -> Option<String> {
    let named = pods.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = match pods.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let number = match pods.len() {
        0 => return None,
        1 => "1 pod has a mesh's proxy and was".to_owned(),
        number => format!("{number} pods have a mesh's proxy and were"),
    };
    Some(format!(
        "{number} attached without denizen: {named}{more}. Unless something else redirects such a \
         pod, it passes its proxy by. A pod that takes its place will be redirected"
    ))
}
