//! One search: the part that runs in a thread that may block.

use std::collections::HashSet;

use tokio::sync::{mpsc, oneshot};

use crate::memory::trim;
use denizen_conntrack::{Conntrack, ConntrackError};
use denizen_packet::{Family, PackedFlow, TrackedFlow, Treatment};
use denizen_plan::conntrack::StaleCandidates;

/// Entries that the loop decides about in one turn: a fraction of a millisecond's work.
const PIECE: usize = 1024;

/// From this many decisions on, their memory is returned to the kernel at once.
pub(super) const MANY: usize = 20_000;

/// The result of a search.
pub struct Finished {
    pub(super) conntrack: Conntrack,
    pub(super) treated: Treated,
    /// The connections that are forbidden now.
    pub(super) forbidden: HashSet<PackedFlow>,
    /// The first error; everything else was done.
    pub(super) error: Option<ConntrackError>,
}

/// How many entries were treated, of those that still existed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Treated {
    /// By family.
    pub deleted: [usize; 2],
    pub forbidden: usize,
    pub permitted: usize,
}

/// Reads the entries that match the candidates, passes them to the loop, and carries out what the
/// loop decides. `forbidden` are the connections that were forbidden before.
pub(super) fn search(
    candidates: &StaleCandidates,
    conntrack: Conntrack,
    forbidden: HashSet<PackedFlow>,
    read: mpsc::Sender<Vec<TrackedFlow>>,
    decided: oneshot::Receiver<Vec<(PackedFlow, Treatment)>>,
) -> Finished {
    let treated = Treated::default();
    let mut finished_search = Finished { conntrack, treated, forbidden, error: None };
    finished_search.read(candidates, &read);
    drop(read);
    let decided = decided.blocking_recv().unwrap_or_default();
    finished_search.treat(&decided);
    finished_search.forbidden.shrink_to_fit();
    if decided.len() >= MANY {
        drop(decided);
        trim();
    }
    finished_search
}

impl Finished {
    fn read(&mut self, candidates: &StaleCandidates, read: &mpsc::Sender<Vec<TrackedFlow>>) {
        let parts = candidates.parts();
        // If sending fails, the loop has ended, and the process ends too.
        let send = |piece| _ = read.blocking_send(piece);
        let is_read = |entry: &TrackedFlow| parts.iter().any(|part| part.keeps(entry));
        let unread = self.forbidden.iter().map(PackedFlow::flow).filter(|entry| !is_read(entry));
        let mut again = unread.filter(|entry| candidates.may_permit(entry)).peekable();
        while again.peek().is_some() {
            send(again.by_ref().take(PIECE).collect());
        }
        drop(again);
        let mut piece = Vec::with_capacity(PIECE);
        for part in &parts {
            let mut forbidden: Vec<PackedFlow> = Vec::new();
            let result = self.conntrack.read(*part, |entry| {
                if candidates.concern(&entry) {
                    piece.push(entry);
                }
                if piece.len() == PIECE {
                    send(std::mem::replace(&mut piece, Vec::with_capacity(PIECE)));
                }
                forbidden.extend(entry.is_marked.then_some(PackedFlow::from(&entry)));
            });
            if result.is_ok() {
                self.forbidden.retain(|entry| !part.keeps(&entry.flow()));
            }
            self.forbidden.extend(forbidden);
            self.note(result);
        }
        send(piece);
    }

    /// Carries out the decisions piece by piece: they may concern the kernel's whole table.
    fn treat(&mut self, decided: &[(PackedFlow, Treatment)]) {
        for (treatment, family) in Treatment::ALL
            .into_iter()
            .flat_map(|treatment| Family::BOTH.map(|family| (treatment, family)))
        {
            let of_it = decided.iter().filter(|(_, decided)| *decided == treatment);
            let flows = of_it.map(|(entry, _)| entry.flow());
            let mut entries = flows.filter(|entry| entry.family() == family).peekable();
            while entries.peek().is_some() {
                let piece = entries.by_ref().take(PIECE).collect::<Vec<_>>();
                self.treat_piece(treatment, family, &piece);
            }
        }
    }

    fn treat_piece(&mut self, treatment: Treatment, family: Family, entries: &[TrackedFlow]) {
        let done = match treatment {
            Treatment::Delete | Treatment::DeleteUnanswered => {
                &mut self.treated.deleted[family as usize]
            }
            Treatment::Mark => &mut self.treated.forbidden,
            Treatment::Unmark => &mut self.treated.permitted,
        };
        let result = self.conntrack.treat(treatment, entries, done);
        match treatment {
            Treatment::Mark => {
                let marked = |entry: &TrackedFlow| TrackedFlow { is_marked: true, ..*entry };
                self.forbidden.extend(entries.iter().map(|entry| (&marked(entry)).into()));
            }
            Treatment::Delete | Treatment::Unmark if result.is_ok() => {
                entries.iter().for_each(|entry| _ = self.forbidden.remove(&entry.into()));
            }
            // After an error, the next search finds which entries were treated. With
            // `DeleteUnanswered`, an entry that was answered meanwhile still exists.
            Treatment::Delete | Treatment::DeleteUnanswered | Treatment::Unmark => {}
        }
        self.note(result);
    }

    fn note(&mut self, result: Result<(), ConntrackError>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }
}
