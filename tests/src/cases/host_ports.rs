//! Host ports as packets meet them: statements that hold whoever serves services. Each takes a
//! [`Context`](context::Context), and leaves no pod behind.

pub mod context;
pub mod forward;
pub mod place;
pub mod policy;
pub mod precedence;
pub mod reach;
pub mod removal;
