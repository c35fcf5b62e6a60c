//! Virtual servers in a kernel that keeps its promises and no more: it refuses, stops half way, and
//! is changed behind our back.

mod fake;
mod gate;
mod leaving;
mod steps;
