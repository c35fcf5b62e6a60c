//! The page's section about tracked connections, shown on demand.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use maud::{Markup, html};

use super::{Answered, PageQuery};
use denizen_observe::connections::{NamedConnection, ServiceTotal, Summary};

/// The most services that are shown.
const SERVICES: usize = 50;

pub(super) fn section(asking: &PageQuery, summary: Option<&Answered<Arc<Summary>>>) -> Markup {
    let counting = |connections| PageQuery { connections, ..asking.clone() }.link("connections");
    html! {
        section #connections {
            h2 { "Connections" }
            @match summary {
                None => p { a href=(counting(true)) { "Count this node's connections" } },
                Some(Err(error)) => p.chip.bad { (error) },
                Some(Ok(summary)) => {
                    (counted(summary))
                    p.hint { a href=(counting(false)) { "Do not count them" } }
                },
            }
        }
    }
}

fn counted(summary: &Summary) -> Markup {
    let mut services: Vec<&ServiceTotal> = summary.totals.services.values().collect();
    services.sort_by_key(|total| Reverse(total.connections));
    let left = services.len().saturating_sub(SERVICES);
    let at = i64::try_from(summary.at.as_secs()).unwrap_or_default();
    let at = Timestamp::from_second(at).unwrap_or_default();
    html! {
        p { (summary.totals.total) " connections at " time { (at) } }
        table {
            thead { tr { th { "service" } th { "connections" } th { "masqueraded" } } }
            tbody {
                @for total in services.into_iter().take(SERVICES) {
                    tr {
                        th scope="row" { (total.service) }
                        td.number { (total.connections) }
                        td.number { (total.masqueraded) }
                    }
                }
            }
        }
        @if left > 0 { p.hint { "and " (left) " services with fewer" } }
        (newest(&summary.newest))
    }
}

/// Without the kernel's timestamps, the newest connections are not known.
fn newest(newest: &[NamedConnection]) -> Markup {
    let is_known = newest.iter().any(|connection| connection.seconds.is_some());
    html! {
        h3 { @if is_known { "The newest" } @else { "Some of them" } }
        ul.plain { @for connection in newest { li { code { (connection) } } } }
    }
}
