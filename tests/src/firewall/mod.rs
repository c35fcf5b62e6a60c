//! What the tests of the pod firewall stand on: two nodes with agents, who sends without pause, who
//! remembers by whom it was reached, and changes without end.

pub mod churn;
pub mod nodes;
pub mod recorder;
pub mod spray;
