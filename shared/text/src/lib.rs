//! Text for people: errors on one line, text that others wrote made safe to print, addresses with
//! names, durations as Go writes them, and lines that may be lost.

#![deny(missing_docs)]

mod address;
mod describe;
mod duration;
mod lines;
mod printable;

pub use address::named_address;
pub use describe::describe;
pub use duration::duration;
pub use lines::{eprint_line, print_line};
pub use printable::{Printable, printable_json, printable_lines};
