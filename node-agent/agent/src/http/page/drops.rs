//! The page's section about dropped and refused packets.

use maud::{Markup, html};

use denizen_observe::drops::DropCounts;

pub(super) fn section(counts: &DropCounts) -> Markup {
    let counted = counts.drops.iter().filter(|count| count.packets > 0);
    html! {
        section #drops {
            h2 { "Dropped and refused" }
            @if let Some(what) = &counts.not_counted { p { "Not counted: " (what) } }
            table {
                thead { tr { th { "packets" } th { "verdict" } th { "why" } th { "table" } } }
                tbody {
                    @for count in counted {
                        tr {
                            td.number { (count.packets) }
                            td { (count.verdict) }
                            td { (count.reason) }
                            td { code { (count.table) } }
                        }
                    }
                }
            }
        }
    }
}
