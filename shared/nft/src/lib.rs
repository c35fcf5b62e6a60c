//! The nf_tables driver: typed tables, in the kernel and as text.
//!
//! A client declares a table ([`Schema`]: its sets, and what their keys and values consist of), and
//! says which [`Chain`]s and [`Element`]s it should have. The driver writes them in one batch
//! ([`Batch`]), which the kernel takes whole or not at all; reads what the kernel has
//! ([`Kernel::observe`]); finds what differs ([`Structure`], [`Delta`]); is notified of others'
//! changes ([`Watch`]); shows a table as `nft` would ([`Rendering`]); and receives the kernel's
//! trace messages of packets that a rule marked ([`Tracer`]). A client that owns a table leaves all
//! of that to a [`Keeper`], and only renders its [`Content`].
//!
//! It knows nothing of what tables are for: no service, no pod, no policy. A rule carries its
//! client's reason for a person to read, and is recognised by its [`RuleId`] alone.

#![deny(missing_docs)]

mod batch;
mod bytes;
mod chain;
mod content;
mod counted;
mod declaration;
mod difference;
mod edge;
mod edit;
mod encode;
mod expression;
mod expression_view;
mod family;
mod field;
mod isolate;
mod keeper;
mod kernel;
mod listing;
mod lookup;
mod observed;
mod observed_chain;
mod observed_element;
mod observed_elements;
mod part;
mod read;
mod repair;
mod rule;
mod rule_id;
mod sampled;
mod set;
mod statement;
mod steps;
mod subject;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod user_data;
mod watch;

pub use batch::{Batch, RulePosition};
pub use bytes::{Bytes, Data, Key, read_address};
pub use chain::{BaseChain, Chain, ChainKind, Hook};
pub use content::{Content, Extent};
pub use counted::CountedElement;
pub use declaration::SetDeclaration;
pub use difference::{Delta, Structure};
pub use expression_view::{Decision, ExpressionView};
pub use family::TableFamily;
pub use field::Field;
pub use keeper::Keeper;
pub use kernel::{Kernel, Mark, NftError};
pub use lookup::Lookup;
pub use observed::Observed;
pub use part::RejectedElement;
pub use read::{ChainView, RuleView, TableView};
pub use repair::Repair;
pub use rule::Rule;
pub use rule_id::RuleId;
pub use sampled::sampled;
pub use set::{DataType, Element, Schema, Set, SetId, Value, endpoint, read_endpoint};
pub use statement::{Assigned, Limit, Operation, Reject, Statement, Update, Variable, Verdict};
pub use subject::MessageSubject;
pub use text::Rendering;
pub use trace::{TraceEvent, TraceMessage, TraceVerdict, TracedPacket, Tracer};
pub use user_data::comment_text;
pub use watch::{Changes, Watch};
