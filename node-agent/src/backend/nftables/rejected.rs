//! Single elements that the kernel rejects.

use super::element::{Element, Key, KeyText};
use super::name::{SetName, TableFamily};
use crate::plan::FrontendKey;

/// An element that the kernel rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The frontend that it is about, where it is about one.
    pub key: Option<FrontendKey>,
    /// What was rejected, and why.
    pub words: String,
}

impl Rejected {
    /// It was to be removed.
    pub fn removal(table_family: TableFamily, set: SetName, key: &Key, error: &str) -> Self {
        let family = set.family(table_family);
        Self {
            key: key.frontend(set, family),
            words: format!("to remove {} from {set}: {error}", KeyText { set, family, key }),
        }
    }

    /// It was to be added.
    pub fn addition(table_family: TableFamily, element: &Element, error: &str) -> Self {
        let Element { set, key, comment, .. } = element;
        let family = set.family(table_family);
        let owner = comment.as_deref().unwrap_or("no comment");
        let text = KeyText { set: *set, family, key };
        Self {
            key: key.frontend(*set, family),
            words: format!("to add {text} ({owner}) to {set}: {error}"),
        }
    }
}
