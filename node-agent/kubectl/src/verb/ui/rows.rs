//! What stands beside the picture: the same edges as a table, who did not answer, what is folded,
//! and what rules have counted.

use std::cmp::Reverse;

use denizen_text::Printable;
use maud::{Markup, html};

use super::draw::{shown_ports, summary, svg};
use super::drawing::{BOXES, Drawing, DrawnEdge, EDGES, OmittedEdges};
use super::history::{EdgeFacts, MINUTES};
use super::layout::Layout;
use super::observation::EdgeVerdict;
use super::participant::Participant;
use super::round_result::RoundResult;
use crate::finding::{Texts, node_names};
use crate::verb::drops::Drop;

/// How many counters are shown.
const COUNTERS: usize = 30;

/// The parts of the page that change. The script puts each in the place of the one before.
pub fn parts(
    last_round: &RoundResult,
    watch_notes: &[String],
    drawing: &Drawing,
    layout: &Layout,
) -> Markup {
    html! {
        div #notices { (notices(last_round, watch_notes)) }
        div #summary { (summary_line(last_round, drawing)) }
        div #picture { (svg(drawing, layout)) }
        div #rows { (rows(drawing)) (counters(last_round)) }
    }
}

/// A text that others wrote, made printable.
fn text(text: &str) -> Markup {
    html! { (Printable(text)) }
}

fn notices(last_round: &RoundResult, watch_notes: &[String]) -> Markup {
    let notes: Vec<&String> = last_round.notes.iter().chain(watch_notes).collect();
    let answered = last_round.nodes - last_round.unanswered.len();
    let mut reasons = Texts::default();
    for unanswered in &last_round.unanswered {
        reasons
            .add(&unanswered.node, &format!("{}: {}", unanswered.why.code, unanswered.why.reason));
    }
    html! {
        @if !last_round.unanswered.is_empty() {
            section.warn {
                h2 { (answered) " of " (last_round.nodes) " nodes answered" }
                ul.plain {
                    @for shared in reasons.sorted() {
                        li { (text(&node_names(shared.nodes.iter()))) ": " (text(&shared.shown())) }
                    }
                }
            }
        }
        @if !notes.is_empty() {
            section.notes { ul.plain { @for note in notes { li { (text(note)) } } } }
        }
    }
}

fn summary_line(last_round: &RoundResult, drawing: &Drawing) -> Markup {
    let folded =
        drawing.boxes.iter().filter(|drawn| matches!(drawn.participant, Participant::Rest(_)));
    let folded: usize = folded.map(|drawn| drawn.members).sum();
    let OmittedEdges { edges, bad } = drawing.left_out;
    html! {
        p { (summary(drawing)) ". "
            @if last_round.nodes > 0 && last_round.unanswered.is_empty() {
                "All " (last_round.nodes) " nodes answered. "
            }
            @if folded > 0 {
                (folded) " workloads, services and nodes are folded: more than " (BOXES)
                " boxes are not drawn. "
            }
            @if edges > 0 {
                (edges) " edges are not drawn, " (bad)
                " of them refused, dropped or unanswered: more than " (EDGES) " are not. "
            }
            @if last_round.forgotten > 0 {
                (last_round.forgotten) " edges were forgotten early, for want of room."
            }
        }
    }
}

fn rows(drawing: &Drawing) -> Markup {
    let mut edges: Vec<&DrawnEdge> = drawing.edges.iter().collect();
    edges.sort_by_key(|edge| Reverse((edge.facts.verdict, edge.facts.weight())));
    html! {
        section #edges {
            h2 { "Edges " span.count { (edges.len()) } }
            @if edges.is_empty() {
                p.hint { "No connection was seen." }
            } @else {
                table {
                    thead {
                        tr {
                            th { "from" } th { "to" } th { "port" } th { "verdict" }
                            th { "now" } th { "last " (MINUTES) " minutes" } th { "why" } th {}
                        }
                    }
                    tbody { @for edge in edges { (row(drawing, edge)) } }
                }
            }
        }
    }
}

fn row(drawing: &Drawing, edge: &DrawnEdge) -> Markup {
    let (DrawnEdge { from, to, ports, facts }, id) = (edge, edge.id());
    let [from, to] = [from, to].map(|end| drawing.boxes[*end].participant.to_string());
    let tone = match facts.verdict {
        EdgeVerdict::Connected => "good",
        EdgeVerdict::Unanswered => "warn",
        EdgeVerdict::Refused | EdgeVerdict::Dropped => "bad",
    };
    html! {
        tr data-row=(id) {
            th scope="row" { (text(&from)) }
            td { (text(&to)) }
            td { code { (shown_ports(ports.iter())) } }
            td { span.chip.(tone) { (facts.verdict.word()) } }
            td.number { @if facts.open > 0 { (facts.open) } @else { "–" } }
            td.number { (sparkline(facts)) " " (facts.weight())
                @if facts.age > 0 { small { " " (facts.age) " min ago" } } }
            td { @for (_, reason) in facts.reasons.iter().rev() { p.why { (text(reason)) } } }
            td { button type="button" data-edge=(id) { "Explain" } }
        }
    }
}

/// A bar a minute.
fn sparkline(facts: &EdgeFacts) -> Markup {
    const WIDTH: usize = 4;
    const HEIGHT: u64 = 16;
    let most = facts.minutes.iter().copied().max().unwrap_or_default().max(1);
    html! {
        svg.sparkline width=(WIDTH * MINUTES) height=(HEIGHT) aria-hidden="true" {
            @for (at, count) in facts.minutes.iter().enumerate().filter(|(_, count)| **count > 0) {
                @let height = (count.saturating_mul(HEIGHT) / most).max(2);
                @let top = HEIGHT.saturating_sub(height);
                rect x=(at * WIDTH) y=(top) width=(WIDTH - 1) height=(height) {}
            }
        }
    }
}

fn counters(last_round: &RoundResult) -> Markup {
    let drops = &last_round.drops.drops;
    html! {
        section #counters {
            h2 { "What rules dropped and refused since they were made" }
            @if drops.is_empty() { p.hint { "Nothing." } } @else {
                table {
                    thead {
                        tr { th { "packets" } th { "verdict" } th { "reason" } th { "nodes" } }
                    }
                    tbody {
                        @for drop in drops.iter().take(COUNTERS) {
                            @let Drop { reason, verdict, packets, nodes, .. } = drop;
                            tr {
                                td.number { (packets) }
                                td { (text(verdict)) }
                                td { (text(reason)) }
                                td { (nodes.len()) }
                            }
                        }
                    }
                }
                @if drops.len() > COUNTERS { p.hint { (drops.len() - COUNTERS) " more" } }
            }
            @for shared in &last_round.drops.not_counted {
                p.hint { "not counted: " (text(&shared.shown())) }
            }
        }
    }
}
