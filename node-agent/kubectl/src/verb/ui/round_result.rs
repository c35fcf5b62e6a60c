//! What a round of questions to the agents brought, besides edges.

use crate::survey::Unanswered;
use crate::verb::drops::ClusterDrops;

/// The result of a round.
#[derive(Debug, Default)]
pub struct RoundResult {
    pub nodes: usize,
    pub unanswered: Vec<Unanswered>,
    pub notes: Vec<String>,
    pub drops: ClusterDrops,
    /// Edges that were forgotten early.
    pub forgotten: u64,
}
