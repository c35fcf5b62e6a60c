//! `denizen inspect`: how one pod is redirected, for a person.

use std::path::Path;

use denizen_state::{Attachment, StateError};

use super::existing;
use crate::error::CniError;
use crate::kernel::Netns;
use crate::redirect::{self, Location};

/// What the rules inside a container's pod do, and have counted. `container` is the beginning of
/// its id, or `namespace/name` of the pod. The caller must be root.
///
/// # Errors
/// When no record matches, or the pod's network namespace cannot be entered.
pub fn inspect(run_dir: &Path, container: &str) -> Result<String, CniError> {
    let state = match existing(run_dir)? {
        Some(run_dir) => run_dir.read()?,
        None => return Err(StateError::NoRunDir { path: run_dir.to_owned() }.into()),
    };
    let is_meant = |attachment: &&Attachment| {
        let pod = attachment.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name));
        attachment.container_id.starts_with(container) || pod.as_deref() == Some(container)
    };
    let mut text = String::new();
    for record in state.iter().flat_map(|state| state.attachments.values()).filter(is_meant) {
        text += &one(record)?;
    }
    if text.is_empty() {
        let run_dir = run_dir.display();
        return Err(CniError::Disagreement(format!("{container} is not recorded in {run_dir}")));
    }
    Ok(text)
}

fn one(record: &Attachment) -> Result<String, CniError> {
    let pod = record.pod.as_ref().map(|pod| format!(" ({}/{})", pod.namespace, pod.name));
    let about = format!("{}{}", record.id().0, pod.unwrap_or_default());
    let Some(redirect) = &record.redirect else {
        return Ok(format!("{about}: denizen does not redirect it\n"));
    };
    let path = record.netns.as_deref().unwrap_or_default();
    let netns = Netns::open(Path::new(path)).map_err(|error| {
        CniError::io(format!("cannot open the network namespace {path}"), error)
    })?;
    let location = Location::of(&netns, &record.if_name);
    let rules = redirect::inspect(&location, redirect)?;
    Ok(format!("{about}: redirected by the profile {}\n{rules}", redirect.profile))
}
