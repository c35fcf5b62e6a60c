//! Any text as a state file: the typed format and the editor agree, and what is written can be
//! read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| denizen_state::fuzzing::state_file(text));
