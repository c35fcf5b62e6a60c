//! The picture as SVG. What others wrote is escaped by the template, as on the agent's page.

use denizen_text::Printable;
use maud::{Markup, html};

use super::curve::Curve;
use super::dimensions::{HEIGHT, MARGIN, WIDTH};
use super::drawing::{Drawing, DrawnBox, DrawnEdge};
use super::history::EdgeFacts;
use super::layout::Layout;
use super::observation::EdgeVerdict;
use super::participant::{FoldedGroup, Participant};

/// With more edges than this, only edges that are pointed at show their words.
const WORDS: usize = 60;

/// The room for the words of a box, in letters.
const TITLE: usize = 17;
const SUBTITLE: usize = 21;

pub fn svg(drawing: &Drawing, layout: &Layout) -> Markup {
    let curves = Curve::all(drawing, layout);
    let Layout { width, height, idle, .. } = layout;
    let summary = summary(drawing);
    html! {
        svg #map .many[drawing.edges.len() > WORDS] xmlns="http://www.w3.org/2000/svg"
            width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) }
            role="group" aria-label=(summary) {
            (markers())
            @if let Some(y) = idle {
                text.idle x=(MARGIN) y=(y) { "No connections seen" }
            }
            @for (edge, curve) in drawing.edges.iter().zip(&curves) {
                (edge_group(drawing, edge, curve))
            }
            @for (at, (drawn, corner)) in drawing.boxes.iter().zip(&layout.corners).enumerate() {
                (box_group(at, drawn, *corner))
            }
        }
    }
}

/// The drawing in one sentence.
pub fn summary(drawing: &Drawing) -> String {
    let count = |number: usize, one: &str, many: &str| {
        format!("{number} {}", if number == 1 { one } else { many })
    };
    let boxes = count(drawing.boxes.len(), "box", "boxes");
    let edges = count(drawing.edges.len(), "edge", "edges");
    match drawing.edges.iter().filter(|edge| edge.facts.is_bad()).count() {
        0 => format!("{boxes} and {edges}: nothing is refused, dropped or unanswered"),
        bad => format!("{boxes} and {edges}: {bad} refused, dropped or unanswered"),
    }
}

fn markers() -> Markup {
    html! {
        defs {
            @for verdict in EdgeVerdict::ALL {
                marker id={ "end-" (verdict.word()) } class=(verdict.word()) viewBox="0 0 10 10"
                    refX="9" refY="5" markerWidth="9" markerHeight="9"
                    markerUnits="userSpaceOnUse" orient="auto" {
                    @match verdict {
                        EdgeVerdict::Connected => path.filled d="M1 1 L9 5 L1 9 z" {},
                        EdgeVerdict::Unanswered => path.stroked d="M1 1 L9 5 L1 9" {},
                        // The packet does not get to its destination.
                        EdgeVerdict::Refused | EdgeVerdict::Dropped => {
                            path.stroked d="M1 1 L9 9 M1 9 L9 1" {}
                        },
                    }
                }
            }
        }
    }
}

fn edge_group(drawing: &Drawing, edge: &DrawnEdge, curve: &Curve) -> Markup {
    let DrawnEdge { from, to, ports, facts } = edge;
    let word = facts.verdict.word();
    let [from, to] =
        [from, to].map(|end| Printable(&drawing.boxes[*end].participant.to_string()).to_string());
    let ports = shown_ports(ports.iter());
    let title = format!("{from} to {to}, {ports}: {}", described(facts));
    let (path, (x, y)) = (curve.path(), curve.words());
    html! {
        g.edge.(word).past[facts.age > 1].(thickness(facts)) data-edge=(edge.id())
            data-ends={ (edge.from) " " (edge.to) } tabindex="-1"
            role="button" aria-label=(title) {
            title { (title) }
            path.hit d=(path) {}
            path.line d=(path) marker-end={ "url(#end-" (word) ")" } {}
            text x=(x) y=(y) text-anchor="middle" { (fitting(&ports, TITLE)) }
        }
    }
}

fn box_group(at: usize, drawn: &DrawnBox, (x, y): (i64, i64)) -> Markup {
    let DrawnBox { participant, is_bad, .. } = drawn;
    let name = Printable(&participant.to_string()).to_string();
    let (subtitle, is_marked) = subtitle(drawn);
    let title = format!("{name}: {subtitle}");
    let heading = fitting(&Printable(&participant.title()).to_string(), TITLE);
    let opens = match participant {
        Participant::Rest(FoldedGroup::Namespace(namespace)) => Some(Printable(namespace)),
        Participant::Rest(FoldedGroup::Nodes | FoldedGroup::OtherNamespaces) => None,
        Participant::Outside { .. }
        | Participant::Node(_)
        | Participant::Workload { .. }
        | Participant::Service { .. } => None,
    };
    let searches = match participant {
        Participant::Rest(_) => None,
        Participant::Outside { .. }
        | Participant::Node(_)
        | Participant::Workload { .. }
        | Participant::Service { .. } => Some(&name),
    };
    html! {
        g.box.(participant.class()).bad[*is_bad] transform={ "translate(" (x) " " (y) ")" }
            tabindex="-1"
            role="button" aria-label=(title) data-box=(at) data-open=[opens]
            data-search=[searches] {
            title { (title) }
            @if let Participant::Rest(_) = participant {
                rect.behind x="5" y="5" width=(WIDTH) height=(HEIGHT) rx="9" {}
            }
            rect.card width=(WIDTH) height=(HEIGHT) rx="9" {}
            rect.stripe x="8" y="9" width="4" height=(HEIGHT - 18) rx="2" {}
            text.title x="20" y="20" { (heading) }
            text.subtitle.mark[is_marked] x="20" y="37" { (fitting(&subtitle, SUBTITLE)) }
        }
    }
}

/// The second line of a box, and whether it says what is wrong.
fn subtitle(drawn: &DrawnBox) -> (String, bool) {
    let DrawnBox { participant, facts, members, inside, .. } = drawn;
    if let Some(mark) = &facts.mark {
        return (Printable(mark).to_string(), true);
    }
    let pods = match facts.pods {
        0 => String::new(),
        1 => ", 1 pod".to_owned(),
        many => format!(", {many} pods"),
    };
    let text = match participant {
        Participant::Outside { is_client: true } => "clients elsewhere".to_owned(),
        Participant::Outside { is_client: false } => "servers elsewhere".to_owned(),
        Participant::Node(_) => "node, host network".to_owned(),
        Participant::Service { namespace, .. } => format!("service in {namespace}"),
        Participant::Workload { namespace, .. } if facts.kind.is_empty() => {
            format!("in {namespace}")
        }
        Participant::Workload { namespace, .. } => format!("{namespace}{pods}"),
        Participant::Rest(_) if *inside > 0 => format!("{members} more, {inside} inside"),
        Participant::Rest(_) => format!("{members} more"),
    };
    (Printable(&text).to_string(), false)
}

/// What became of an edge's packets, in words.
pub fn described(facts: &EdgeFacts) -> String {
    let counted = EdgeVerdict::ALL.into_iter().rev().filter_map(|verdict| {
        let count = facts.counts[verdict as usize];
        (count > 0).then(|| format!("{} {count}", verdict.word()))
    });
    let mut text = counted.collect::<Vec<_>>().join(", ");
    for (_, reason) in facts.reasons.iter().rev() {
        text.push_str(&format!("; {}", Printable(reason)));
    }
    text
}

/// The first ports, and how many more there are.
pub fn shown_ports<'a>(ports: impl ExactSizeIterator<Item = &'a String>) -> String {
    const SHOWN: usize = 3;
    let more = ports.len().saturating_sub(SHOWN);
    let shown = ports.take(SHOWN).map(|port| Printable(port).to_string());
    let shown = shown.collect::<Vec<_>>().join(", ");
    if more == 0 { shown } else { format!("{shown}, and {more} more") }
}

/// How wide a line is, by powers of ten.
fn thickness(facts: &EdgeFacts) -> &'static str {
    match facts.open.max(facts.weight() / 15) {
        0..10 => "thin",
        10..100 => "middle",
        _ => "thick",
    }
}

/// The text, cut where it does not fit. Letters of East Asia are as wide as two.
fn fitting(text: &str, room: usize) -> String {
    let width = |letter: char| if letter >= '\u{1100}' { 2 } else { 1 };
    if text.chars().map(width).sum::<usize>() <= room {
        return text.to_owned();
    }
    let mut left = room - 1;
    let fits = text.chars().take_while(|letter| {
        let fits = width(*letter) <= left;
        left = left.saturating_sub(width(*letter));
        fits
    });
    fits.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        let cases = [
            ("web", 5, "web"),
            ("checkout", 8, "checkout"),
            ("checkouts", 8, "checkou…"),
            ("東京東京", 5, "東京…"),
        ];
        for (text, room, expected) in cases {
            assert_eq!(fitting(text, room), expected, "{text}");
        }
    }
}
