//! Lines on standard output and standard error. `println!` and `eprintln!` panic if they cannot
//! write, because the reader has gone or the disk is full. A command would then end halfway.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Writes a line to standard output, if possible.
pub fn print_line(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Writes a line to standard error, if possible.
pub fn eprint_line(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
