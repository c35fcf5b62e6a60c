//! The form that explains a packet, and the packet's path from its sender to its destination.

use maud::{Markup, html};

use super::{Answered, PageQuery};
use denizen_plan::explain::{Explanation, PacketVerdict};

/// The form, and the explanation if one was requested.
pub(super) fn section(asking: &PageQuery, explanation: Option<&Answered<Explanation>>) -> Markup {
    html! {
        section #explain {
            h2 { "Explain a packet" }
            form action="/#explain" {
                label { "from" input name="from" value=(asking.from) placeholder="10.85.0.5@cni0" required; }
                label { "to" input name="to" value=(asking.to) placeholder="10.96.0.10:80/tcp" required; }
                button { "Explain" }
            }
            @match explanation {
                None => p.hint { "A pod's address or a service's frontend below fills the form." },
                Some(Err(error)) => p.chip.bad { (error) },
                Some(Ok(explanation)) => (path(asking, explanation)),
            }
        }
    }
}

fn path(asking: &PageQuery, explanation: &Explanation) -> Markup {
    let tone = match explanation.verdict {
        PacketVerdict::Forward => "good",
        PacketVerdict::Reject | PacketVerdict::Drop | PacketVerdict::Unknown => "bad",
        PacketVerdict::Untouched | PacketVerdict::Foreign => "plain",
    };
    html! {
        div.path {
            p.end {
                code { (asking.from) }
                span.chip { @if explanation.local { "a pod of this node" } @else { "not a pod of this node" } }
            }
            ol {
                @for step in &explanation.steps {
                    li { strong { (step.what) } p { (step.why) } }
                }
            }
            p.end.(tone) {
                strong { (explanation.verdict) }
                @if let Some(service) = &explanation.service { " as " (service) }
                @if explanation.masquerade { span.chip { "its source becomes this node's address" } }
            }
        }
        @if !explanation.endpoints.is_empty() {
            ul.fork {
                @for endpoint in &explanation.endpoints { li { code { (endpoint) } } }
            }
            p.hint { @if explanation.endpoints.len() > 1 { "each as likely as the others" } }
        }
    }
}
