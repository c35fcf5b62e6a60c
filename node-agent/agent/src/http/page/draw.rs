//! The page's parts.

use std::sync::Arc;

use maud::{DOCTYPE, Markup, html};

use super::{Answered, PageQuery, connections, drops, firewall, packet};
use denizen_observe::connections::Summary;
use denizen_observe::status::Status;
use denizen_observe::status::view::{
    ConnectionFate, FrontendRow, PodRow, ResultPart, ServiceRow, SyncRow, View, ViewQuery,
};
use denizen_plan::explain::Explanation;

/// The most draining endpoints that are shown.
const DRAINING: usize = 50;

/// The page.
pub(super) fn document(
    asking: &PageQuery,
    view: &Answered<View>,
    explanation: Option<&Answered<Explanation>>,
    summary: Option<&Answered<Arc<Summary>>>,
) -> Markup {
    let node = view.as_ref().map_or("", |view| &view.node);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(every) = asking.every { meta http-equiv="refresh" content=(every); }
                title { "denizen on " (node) }
                link rel="stylesheet" href="/style.css";
            }
            body {
                header { (heading(asking, view)) }
                main {
                    @match view {
                        Err(error) => section.bad { h2 { "No answer" } p { (error) } },
                        Ok(view) => (parts(asking, view, explanation, summary)),
                    }
                }
                footer {
                    a href="/metrics" { "metrics" } " " a href="/healthz" { "health" }
                    span { "denizen-agent " (env!("CARGO_PKG_VERSION")) }
                }
            }
        }
    }
}

fn heading(asking: &PageQuery, view: &Answered<View>) -> Markup {
    let (tone, words) = match view {
        Err(_) => ("bad", "does not answer".to_owned()),
        Ok(View { status, .. }) if !status.errors.is_empty() => {
            let number = status.errors.len();
            let s = if number == 1 { "" } else { "s" };
            ("bad", format!("{number} problem{s}"))
        }
        Ok(View { status, .. }) if !status.synced => {
            ("warn", format!("waiting for {}", status.waiting_for.join(", ")))
        }
        Ok(_) => ("good", "all programmed".to_owned()),
    };
    let every = |every| PageQuery { every, ..asking.clone() }.link("");
    html! {
        h1 { "denizen" }
        @if let Ok(view) = view {
            p.node { (view.node) span { (view.status.backend) ", " (view.status.detect_local) } }
        }
        p.badge.(tone) { (words) }
        nav {
            @if asking.every.is_some() {
                a href=(every(None)) { "stop refreshing" }
            } @else {
                a href=(every(Some(5))) { "refresh every 5 s" }
            }
        }
    }
}

fn parts(
    asking: &PageQuery,
    view: &View,
    explanation: Option<&Answered<Explanation>>,
    summary: Option<&Answered<Arc<Summary>>>,
) -> Markup {
    html! {
        (tiles(&view.status))
        (problems("bad", "Errors", &view.status.errors))
        (problems("warn", "Warnings", &view.status.warnings))
        (packet::section(asking, explanation))
        (services(asking, &view.services))
        (draining(&view.status))
        (firewall::section(&view.status))
        (pods(asking, &view.pods))
        (drops::section(&view.drops))
        (connections::section(asking, summary))
        (syncs(&view.syncs))
    }
}

fn tiles(status: &Status) -> Markup {
    let last = status.last_sync.as_ref();
    let repair = status.last_repair_milliseconds.map(|ms| format!("the last in {ms:.1} ms"));
    let generation = status.generation.map(|number| format!("state file {number}"));
    let tiles = [
        ("local pods", status.pods.to_string(), generation),
        ("services", status.services.to_string(), None),
        ("endpoints", status.endpoints.to_string(), None),
        (
            "last sync",
            last.map_or("never".to_owned(), |last| format!("{:.1} ms", last.milliseconds)),
            last.map(|last| last.at.clone()),
        ),
        ("drift repaired", status.drift_repaired.to_string(), repair),
        ("missed lookups", status.missed_lookups.to_string(), None),
    ];
    let host_ports = status.host_ports.as_ref().map(|host_ports| {
        let conflicts = host_ports.conflicts.len();
        let more = (conflicts > 0).then(|| format!("{conflicts} not as asked for"));
        ("host ports", host_ports.served.to_string(), more)
    });
    html! {
        dl.tiles {
            @for (name, value, more) in tiles.into_iter().chain(host_ports) {
                div.card {
                    dt { (name) }
                    dd { (value) @if let Some(more) = more { small { (more) } } }
                }
            }
        }
    }
}

fn problems(tone: &str, title: &str, problems: &[String]) -> Markup {
    html! {
        @if !problems.is_empty() {
            section.(tone) {
                h2 { (title) }
                ul { @for problem in problems { li { (problem) } } }
            }
        }
    }
}

fn services(asking: &PageQuery, services: &ResultPart<ServiceRow>) -> Markup {
    let (skip, shown) = (asking.view.skip, services.shown.len());
    let at = |skip| {
        let view = ViewQuery { skip, ..asking.view.clone() };
        PageQuery { view, ..asking.clone() }.link("services")
    };
    html! {
        section #services {
            h2 { "Services " (extent(skip, shown, services.total)) }
            form.search action="/" {
                input type="search" name="q" value=(asking.view.search) aria-label="name or address"
                    placeholder="name or address of a service or pod";
                button { "Search" }
            }
            table {
                thead { tr { th { "service" } th { "frontend" } th { "new connections go to" } } }
                @for service in &services.shown { (service_rows(asking, service)) }
            }
            @if skip > 0 || skip + shown < services.total {
                p.pages {
                    @if skip > 0 { a href=(at(skip.saturating_sub(50))) { "previous" } }
                    @if skip + shown < services.total { a href=(at(skip + shown)) { "next" } }
                }
            }
        }
    }
}

fn draining(status: &Status) -> Markup {
    let draining = status.ipvs.as_ref().map_or(&[][..], |ipvs| &ipvs.draining);
    let shown = draining.len().min(DRAINING);
    html! {
        @if !draining.is_empty() {
            section #draining {
                h2 { "Draining endpoints " (extent(0, shown, draining.len())) }
                table {
                    thead {
                        tr {
                            th { "service" } th { "endpoint" } th { "since" }
                            th { "connections" } th { "closed" }
                        }
                    }
                    tbody {
                        @for row in &draining[..shown] {
                            tr {
                                th scope="row" { (row.service) }
                                td { code { (row.endpoint) } }
                                td { (row.since) }
                                td.number { (row.active) }
                                td.number { (row.inactive) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn extent(skip: usize, shown: usize, total: usize) -> Markup {
    html! {
        span.count {
            @if shown == total { (total) } @else { (skip + 1) "–" (skip + shown) " of " (total) }
        }
    }
}

fn service_rows(asking: &PageQuery, service: &ServiceRow) -> Markup {
    html! {
        tbody {
            @for (index, key) in service.keys.iter().enumerate() {
                tr {
                    @if index == 0 {
                        th scope="rowgroup" rowspan=(service.keys.len()) {
                            (service.name)
                            @for policy in &service.policies { span.chip { (policy) } }
                        }
                    }
                    td { (frontend_cell(asking, key)) }
                    td {
                        @if let Some(other) = &key.taken_by {
                            span.chip.warn { "served for " (other) ", which has precedence" }
                        }
                        (fate(&key.inside))
                        @if let Some(outside) = &key.outside {
                            p.outside { "from outside: " (fate(outside)) }
                        }
                    }
                }
            }
            @if service.keys.is_empty() {
                tr { th { (service.name) } td colspan="2" { "no frontend is served" } }
            }
        }
    }
}

/// A frontend, with a link that explains a packet to it.
fn frontend_cell(asking: &PageQuery, key: &FrontendRow) -> Markup {
    let to = PageQuery { to: key.at.clone(), ..asking.clone() };
    html! {
        @if key.at.starts_with("node port") {
            code { (key.at) }
        } @else {
            a href=(to.link("explain")) { code { (key.at) } } " " small { (key.kind) }
        }
    }
}

fn fate(fate: &ConnectionFate) -> Markup {
    html! {
        @match fate {
            ConnectionFate::Reject => span.chip.bad { "refused: no endpoint" },
            ConnectionFate::Drop => span.chip.warn { "dropped: no endpoint on this node" },
            ConnectionFate::Forward(endpoints) => {
                @for endpoint in &endpoints.shown {
                    code.endpoint.local[endpoint.local] title=[endpoint.local.then_some("on this node")] {
                        (endpoint.at)
                    } " "
                }
                @if endpoints.total > endpoints.shown.len() {
                    small { "and " (endpoints.total - endpoints.shown.len()) " more" }
                }
            },
        }
    }
}

fn pods(asking: &PageQuery, pods: &ResultPart<PodRow>) -> Markup {
    let packet = |pod: &PodRow, ip: &String| {
        let from = format!("{ip}@{}", pod.interface);
        PageQuery { from, ..asking.clone() }.link("explain")
    };
    html! {
        section #pods {
            h2 { "Pods of this node " (extent(0, pods.shown.len(), pods.total)) }
            table {
                thead {
                    tr {
                        th { "pod" } th { "addresses" } th { "input interface" }
                        th { "NetworkPolicy" }
                    }
                }
                tbody {
                    @for pod in &pods.shown {
                        tr {
                            th scope="row" { (pod.name) }
                            td { @for ip in &pod.ips { a href=(packet(pod, ip)) { code { (ip) } } " " } }
                            td { code { (pod.interface) }
                                @if let Some(port) = &pod.port { " port " code { (port) } }
                                @if let Some(profile) = &pod.redirect {
                                    " redirected (" (profile) ")"
                                } }
                            td { (firewall::sides(&pod.policy)) }
                        }
                    }
                }
            }
        }
    }
}

fn syncs(syncs: &[SyncRow]) -> Markup {
    html! {
        section #syncs {
            h2 { "Last syncs" }
            table {
                thead { tr { th { "ended" } th { "took" } th { "what changed" } } }
                tbody {
                    @for sync in syncs {
                        tr {
                            td { time { (sync.at) } }
                            td.number { (format!("{:.1} ms", sync.milliseconds)) }
                            td { (sync.what)
                                @if let Some(error) = &sync.error { " " span.chip.bad { (error) } } }
                        }
                    }
                }
            }
        }
    }
}
