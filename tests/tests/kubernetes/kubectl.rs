//! `kubectl denizen` against an API server that really executes: agents that answer well, badly and
//! not at all, by the hundreds; and real ones.

mod answers;
mod bundle;
mod connectivity;
mod explain;
mod impact;
mod killed;
mod older;
mod picture;
mod real;
mod rights;
mod three_nodes;
mod trace;
mod watch;
