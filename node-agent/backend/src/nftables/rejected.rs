//! Single elements that the kernel rejects.

use super::element::frontend_of;
use super::name::{ServiceTable, SetName};
use denizen_nft::{Change, Schema};
use denizen_plan::FrontendKey;
use denizen_text::describe;

/// A change of an element that the kernel rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The frontend that it belongs to, if any.
    pub key: Option<FrontendKey>,
    /// What was rejected, and why.
    pub words: String,
}

impl Rejected {
    /// What was rejected of this table, and why.
    pub fn new(
        table_family: ServiceTable,
        schema: &Schema,
        change: Change<'_>,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let (id, key) = match change {
            Change::Removal(set, key) => (set, key),
            Change::Addition(element) => (element.set, &element.key),
        };
        let (set, error) = (schema.set(id), describe(error));
        let text = set.key_text(key);
        let words = match change {
            Change::Removal(..) => format!("to remove {text} from {}: {error}", set.name),
            Change::Addition(element) => {
                let owner = element.comment.as_deref().unwrap_or("no comment");
                format!("to add {text} ({owner}) to {}: {error}", set.name)
            }
        };
        let family = SetName::of_id(id).family(table_family);
        Self { key: frontend_of(family, set, key), words }
    }
}
