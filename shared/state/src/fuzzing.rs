//! Properties of any text as a state file, for the fuzz target and for a test of its findings.

use std::net::IpAddr;
use std::path::Path;

use serde_json::Map;

use crate::format;
use crate::state::{Attachment, Generation};
use crate::state_editor::StateEditor;

/// Parses and changes `text` with both the typed format and the editor.
///
/// # Panics
///
/// If one accepts what the other refuses, or if they write different text.
pub fn state_file(text: &[u8]) {
    let path = Path::new("pods.json");
    let record = record();
    let editor = StateEditor::parse(text, &record.id());
    let Ok(mut state) = format::parse(text, path) else {
        assert!(editor.is_none(), "the editor accepts what the typed format refuses");
        return;
    };
    let printed = format::print(&state).expect("what was read can be written");
    assert_eq!(format::parse(&printed, path).expect("what was written can be read"), state);
    let Some(mut editor) = editor.filter(|_| state.generation < Generation(u64::MAX)) else {
        return;
    };
    let replaced = editor.put(&record).expect("a record can be written");
    let mut changed = Vec::new();
    editor.print(&mut changed).expect("memory takes everything");
    let before = state.attachments.get(&record.id());
    let record = before.map_or(record.clone(), |before| record.in_place_of(before));
    state.generation.0 += u64::from(before != Some(&record));
    assert_eq!(replaced, state.attachments.insert(record.id(), record));
    assert_eq!(format::parse(&changed, path).expect("what was written can be read"), state);
}

/// A typical record.
pub(crate) fn record() -> Attachment {
    Attachment {
        container_id: "3f1c".to_owned(),
        if_name: "eth0".to_owned(),
        network: "pods".to_owned(),
        pod: None,
        netns: None,
        host_interface: None,
        l3_interface: None,
        bridge: None,
        ips: vec![IpAddr::from([10, 1, 2, 3])],
        added_at: "2026-11-20T12:00:00Z".to_owned(),
        adopted: false,
        redirect: None,
        mac: None,
        host_ports: Vec::new(),
        obsolete_redirects: Vec::new(),
        further_interfaces: Vec::new(),
        host_ports_adopted: false,
        unknown: Map::new(),
    }
}
