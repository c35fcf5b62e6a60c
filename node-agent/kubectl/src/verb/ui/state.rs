//! The state of the picture: names, the edges of the last minutes, and the result of the last
//! round. Pure.

use std::collections::BTreeMap;

use maud::Markup;

use super::directory::Directory;
use super::drawing::{PictureFilter, drawing, edge_id};
use super::history::{History, MINUTES};
use super::layout::Arrangement;
use super::observation::{ExampleEnds, NodeDropped, of_connections, of_dropped, of_refused};
use super::round_result::RoundResult;
use super::rows;
use crate::finding::{CommonText, Texts, node_names};
use crate::no_answer::NoAnswer;
use crate::survey::Unanswered;
use crate::verb::connections::{ClusterConnections, TruncatedNode};
use crate::verb::refused::NodeRefused;

/// For how many filters the columns of the picture are remembered, so that boxes do not jump.
const ARRANGEMENTS: usize = 16;

#[derive(Debug, Default)]
pub struct State {
    pub directory: Directory,
    history: History,
    last_round: RoundResult,
    /// Notes on watched packets that are missing.
    watch_notes: Vec<String>,
    /// Notes on noted flows that are missing.
    noted_notes: Vec<String>,
    arrangements: BTreeMap<PictureFilter, Arrangement>,
    /// A number that grows when something changes.
    version: u64,
    is_known: bool,
}

/// Equal texts once, with the nodes.
fn shared_notes(texts: Texts) -> Vec<String> {
    let note =
        |shared: CommonText| format!("{}: {}", node_names(shared.nodes.iter()), shared.shown());
    texts.sorted().into_iter().map(note).collect()
}

/// The note on nodes that have more connections than they show.
fn partly(more: &[TruncatedNode]) -> Option<String> {
    let nodes: Vec<&String> = more.iter().map(|TruncatedNode { node, .. }| node).collect();
    let shown: usize = more.iter().map(|TruncatedNode { shown, .. }| shown).sum();
    let total =
        more.iter().fold(0, |sum: u64, TruncatedNode { total, .. }| sum.saturating_add(*total));
    let text = || {
        let names = node_names(nodes.iter().copied());
        format!("{shown} of {total} connections are looked at on {names}")
    };
    (!more.is_empty()).then(text)
}

impl State {
    /// Whether there was a round.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn connections(
        &mut self,
        minute: u64,
        connections: &ClusterConnections,
        mut last_round: RoundResult,
    ) {
        self.history.connections(minute, of_connections(connections, &self.directory));
        last_round.notes.extend(partly(&connections.more));
        last_round.notes.extend(self.directory.notes.iter().cloned());
        last_round.notes.extend(self.noted_notes.iter().cloned());
        self.last_round = last_round;
        self.is_known = true;
        self.version += 1;
    }

    /// What the kernels noted of dropped and refused packets before anybody looked. Each flow
    /// counts for the minute of its first packet. Nodes that did not tell, and why, are noted.
    pub fn refused(&mut self, minute: u64, noted: Vec<(String, Result<NodeRefused, NoAnswer>)>) {
        let mut missing = Texts::default();
        let mut packets = Vec::new();
        for (node, refused) in noted {
            let flows = match refused {
                Ok(refused) => refused.flows,
                Err(why) => {
                    let text = format!("what was dropped before has no edges: {}", why.reason);
                    missing.add(&node, &text);
                    continue;
                }
            };
            for (ago, observations) in of_refused(&node, flows, &self.directory) {
                let ago = ago.min(MINUTES as u64 - 1);
                packets.push((minute.saturating_sub(ago), observations));
            }
        }
        self.history.packets(packets);
        self.noted_notes = shared_notes(missing);
        self.last_round.notes.extend(self.noted_notes.iter().cloned());
        self.version += 1;
    }

    /// Takes the dropped packets that were seen, and the nodes that did not show them, with the
    /// reason.
    pub fn dropped(&mut self, minute: u64, seen: &[(String, NodeDropped)], silent: &[Unanswered]) {
        let mut notes = Texts::default();
        let directory = &self.directory;
        let packets = seen.iter().map(|(node, of)| (minute, of_dropped(node, of, directory)));
        self.history.packets(packets);
        for (node, dropped) in seen {
            if dropped.has_more {
                notes.add(node, "more packets were dropped than are shown");
            }
        }
        for Unanswered { node, why } in silent {
            notes.add(node, &format!("dropped packets have no edges: {}", why.reason));
        }
        let notes = shared_notes(notes);
        if !seen.iter().all(|(_, dropped)| dropped.dropped.is_empty()) || notes != self.watch_notes
        {
            self.version += 1;
        }
        self.watch_notes = notes;
    }

    /// Notes that the round failed. What was known before is still shown.
    pub fn failed(&mut self, why: String) {
        self.last_round.notes.retain(|note| *note != why);
        self.last_round.notes.insert(0, why);
        self.is_known = true;
        self.version += 1;
    }

    /// The parts of the page.
    pub fn parts(&mut self, filter: &PictureFilter) -> Markup {
        let drawing = drawing(&self.directory.participants, self.history.edges(), filter);
        let arrangement = Arrangement::of(&drawing, self.arrangements.get(filter));
        let layout = arrangement.layout(&drawing);
        if self.arrangements.len() >= ARRANGEMENTS && !self.arrangements.contains_key(filter) {
            self.arrangements.pop_first();
        }
        self.arrangements.insert(filter.clone(), arrangement);
        self.last_round.forgotten = self.history.forgotten();
        rows::parts(&self.last_round, &self.watch_notes, &drawing, &layout)
    }

    /// The ends of an edge, by its id.
    pub fn ends(&self, id: &str) -> Option<&ExampleEnds> {
        self.history.ends(|key| edge_id(key) == id)
    }
}
