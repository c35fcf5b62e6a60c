//! What the page for people shows, of all that the loop has.

use super::Agent;
use crate::status::view::{View, ViewQuery};

impl Agent {
    pub(super) fn view(&mut self, query: &ViewQuery) -> View {
        let status = self.status();
        View {
            node: self.engine.node_name().to_owned(),
            status,
            pods: self.engine.view_pods(query),
            services: self.engine.view_services(query),
            syncs: self.publisher.history.rows(),
        }
    }
}
