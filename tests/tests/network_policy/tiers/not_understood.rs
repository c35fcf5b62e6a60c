//! What a newer API, or a mistake, has written.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{PING, TCP_80, admin, everybody, expect, from, pods_of, world};
use crate::random::nodes;
use crate::regressions::small::{OTHER_NODE, XA, XB, YA, YB};

/// Rules about namespace y with something in them that nobody understands.
fn wrong_rules(action: &str) -> Vec<Value> {
    let y = || pods_of("y");
    let with = |key: &str, value: Value| {
        let mut rule = from(action, y());
        rule[key] = value;
        rule
    };
    let wrong_selector = json!({ "matchExpressions": [{ "key": "ns", "operator": "Like" }] });
    vec![
        from(action, json!({})),
        json!({ "action": action, "from": [y(), {}] }),
        json!({ "action": action, "from": [y(), { "domainNames": ["kubernetes.io"] }] }),
        json!({ "action": action, "from": [{ "namespaces": wrong_selector }] }),
        json!({ "action": action, "from": [{ "namespaces": {}, "pods": { "podSelector": {} } }] }),
        with("protocols", json!([{}])),
        with("protocols", json!([{ "tcp": {} }])),
        with("protocols", json!([{ "quic": { "destinationPort": { "number": 80 } } }])),
        with("protocols", json!([{ "tcp": { "destinationPort": { "number": 0 } } }])),
        with("log", json!(true)),
    ]
}

#[test]
fn it_fails_closed_rule_by_rule() -> Result<()> {
    for (action, y_passes) in [("Accept", true), ("Deny", false), ("Pass", false), ("Log", false)] {
        for rule in wrong_rules(action) {
            let text = rule.to_string();
            let behind = from("Deny", pods_of("x"));
            let policy = admin(0, "p", "x").ingress([rule, behind]);
            // If it is no Accept it denies everything; an action that is unknown does so too.
            let expected =
                [(YA, XA, TCP_80, y_passes), (YB, XB, PING, y_passes), (XB, XA, TCP_80, false)];
            expect(&world([policy], []), &expected).context(text)?;
        }
    }
    let accepts =
        admin(0, "p", "x").ingress([from("Accept", pods_of("y")), from("Deny", everybody())]);
    let mut subject = world([accepts.clone()], []);
    subject.tiers[0].spec["subject"] = json!({ "nodes": {} });
    expect(&subject, &[(XB, XA, TCP_80, true)]).context("nobody knows whom it would deny what")?;
    let mut tier = world([accepts], []);
    tier.tiers[0].spec["tier"] = "Platform".into();
    expect(&tier, &[(XB, XA, TCP_80, true)]).context("nor where it would stand")
}

#[test]
fn probes_pass_whatever_is_denied() -> Result<()> {
    let own: Vec<String> = nodes()[0].addresses.iter().map(ToString::to_string).collect();
    let own: [&'static str; 2] = [own[0].clone().leak(), own[1].clone().leak()];
    for rule in [from("Deny", json!({})), from("Log", everybody()), from("Deny", everybody())] {
        let world = world([admin(0, "p", "x").ingress([rule.clone()])], []);
        let is_closed = rule != from("Deny", everybody());
        expect(&world, &[(own, XA, TCP_80, true), (own, XB, PING, true), (YA, XA, PING, false)])?;
        // The other node is nobody that labels are about.
        expect(&world, &[(OTHER_NODE, XA, TCP_80, !is_closed)])?;
    }
    Ok(())
}
