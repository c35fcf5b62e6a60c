//! Alerts and the dashboard ask for metrics that the agent has.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use denizen_tests::conf::{documents, text};
use denizen_tests::node::fixture::{Fixture, Host, PORT};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use serde_json::Value;

/// Prometheus' own, of every job.
const UP: &str = "up";

/// What every expression about denizen begins its names with.
const PREFIXES: [&str; 3] = ["denizen_", "kubeproxy_", "process_"];

/// The names of the series, and the names of the labels, that the agent shows.
fn exposed() -> Result<BTreeSet<String>> {
    let fixture = Fixture::new("monitoring")?;
    let ports = [Port::tcp("http", 80, PORT)];
    let web = fixture.service("web", 10, &ports, &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let _agent = fixture.cluster.start_agent()?;
    let reply = fetch(&fixture.cluster.world.node, &url(ip("127.0.0.1"), 10249, "/metrics"), &[])?;
    ensure!(reply.status == 200, "{reply:?}");
    let series = reply.body.lines().filter(|line| !line.starts_with('#'));
    let names = series.filter_map(|line| line.split(['{', ' ']).next());
    Ok(names.map(str::to_owned).collect())
}

/// The metrics that an expression of PromQL names.
fn named(expression: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut names: Vec<_> = expression
        .split(|c| !is_part(c))
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
        .collect();
    if expression.contains("up{") {
        names.push(UP);
    }
    names
}

fn alerts() -> Result<Vec<String>> {
    let rules = documents("monitoring/alerts.yaml")?.remove(0);
    let groups = rules["groups"].as_array().context("groups")?.iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let expressions = rules.map(|rule| rule["expr"].as_str().map(str::to_owned));
    expressions.collect::<Option<_>>().context("an alert has an expression")
}

/// The expressions of the panels, each of which must have a title and a place of its own on the
/// page.
fn panels() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(&text("monitoring/dashboard.json")?)?;
    let (mut expressions, mut titles, mut places) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().context("panels")? {
        let title = panel["title"].as_str().context("a title")?;
        ensure!(titles.insert(title), "{title} twice");
        let number = |key: &str| panel["gridPos"][key].as_u64().context("a place");
        for x in number("x")?..number("x")? + number("w")? {
            for y in number("y")?..number("y")? + number("h")? {
                ensure!(x < 24 && places.insert((x, y)), "{title} lies on another");
            }
        }
        for target in panel["targets"].as_array().context("targets")? {
            expressions.push(target["expr"].as_str().context("an expression")?.to_owned());
        }
    }
    let variables = dashboard["templating"]["list"].as_array().context("variables")?;
    let asked = variables.iter().filter_map(|variable| variable["query"].as_str());
    expressions.extend(asked.filter(|query| query.contains('(')).map(str::to_owned));
    Ok(expressions)
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() -> Result<()> {
    let exposed = exposed()?;
    let expressions = [alerts()?, panels()?].concat();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in &expressions {
        let names = named(expression);
        assert!(!names.is_empty(), "{expression} asks for nothing of ours");
        for name in names {
            assert!(name == UP || exposed.contains(name), "{name} of {expression}: {exposed:#?}");
        }
    }
    Ok(())
}
