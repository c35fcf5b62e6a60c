//! Routing: routes to other nodes' pods, the addresses that this node announces, and BIRD.

pub mod bird;
pub mod routes;
