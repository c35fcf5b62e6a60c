//! Host ports, as packets meet them, with every backend and beside another program that serves
//! services.

mod context;
mod forward;
mod place;
mod policy;
mod portmap;
mod precedence;
mod reach;
mod removal;
