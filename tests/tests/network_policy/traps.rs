//! The traps that implementations of NetworkPolicy have fallen into, and a test in each.

mod addressing;
mod order;
mod rules;
mod selecting;
mod small;
