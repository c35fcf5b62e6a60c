//! The pure part of the backend: where endpoints sit, how one is chosen, and what a change changes.

mod choice;
mod rejected;
mod slots;
mod tables;
