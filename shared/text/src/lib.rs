//! Text for people: errors on one line, text that others wrote made safe to print, addresses with
//! names, durations as Go writes them.

#![deny(missing_docs)]

mod address;
mod describe;
mod duration;
mod printable;

pub use address::named_address;
pub use describe::describe;
pub use duration::duration;
pub use printable::{Printable, printable_json, printable_lines};
