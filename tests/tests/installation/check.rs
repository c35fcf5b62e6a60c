//! `denizen-agent check` finds each fault that it knows, and no other.

mod api;
mod before;
mod command_line;
mod installed;
mod records;
