//! One NetworkPolicy at work: a connection that it permits, one that it forbids, and what `explain`
//! says of each.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::node::QuickstartNode;
use super::page::Page;
use crate::node::cluster::NODE;
use crate::node::fixture::Host;
use crate::node::pod::Pod;
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Protocol};

/// How long a policy may take to be in force.
const TIMEOUT: Duration = Duration::from_secs(5);

const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { namespace: default, name: web }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress:
    - from: [{ podSelector: { matchLabels: { app: shop } } }]
      ports: [{ port: 8080 }]
";

/// A pod's object as the API server has it, with the labels that policies select by, and the UID
/// that the runtime passed to the plugin.
fn object(pod: &Pod, name: &str, app: &str) -> Value {
    let uid = format!("uid-{}", pod.netns.name());
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "default", "name": name, "uid": uid, "labels": { "app": app },
        },
        "spec": { "nodeName": NODE, "containers": [] },
        "status": { "phase": "Running" },
    })
}

pub(super) fn run(node: &QuickstartNode, page: &mut Page) -> Result<()> {
    let manifests = &node.fixture.cluster.manifests;
    let (bridged, routed) = (&node.fixture.bridged, &node.fixture.routed);
    let pods = [object(bridged, "bridged", "web"), object(routed, "routed", "shop")];
    manifests.put("pods", &pods)?;
    manifests.put_text("policy", POLICY)?;
    let in_force = |number: usize| {
        let what = format!("{number} policies in force");
        node.agent.until(&what, TIMEOUT, |status| status["networkPolicy"]["policies"] == number)
    };
    in_force(1)?;
    page.say("The bridged pod has the label app: web, the routed pod app: shop. This is applied:");
    POLICY.lines().for_each(|line| page.say(format_args!("    {line}")));
    connect(node, page, Host::Routed, "permitted")?;
    connect(node, page, Host::Remote, "dropped")?;
    manifests.remove("policy")?;
    in_force(0).map(drop)
}

/// Connects to the bridged pod as `who`, and shows the outcome and the reason.
fn connect(node: &QuickstartNode, page: &mut Page, who: Host, expected: &str) -> Result<()> {
    let web = SocketAddr::new(ip("10.10.0.2"), 8080);
    let (source, interface) = (node.fixture.address(who, web.ip())?, node.fixture.place(who).1);
    let outcome = node.fixture.probe(who, web, Protocol::Tcp)?;
    let came = match &outcome {
        Outcome::Answered { .. } => "permitted".to_owned(),
        Outcome::Dropped => "dropped".to_owned(),
        other @ (Outcome::Refused | Outcome::Unreachable | Outcome::Broken(_)) => {
            format!("{other:?}")
        }
    };
    page.say(format_args!("the {} connects to {web}: {came}", node.owner(source)));
    page.check((came != expected).then_some("the policy says otherwise"));
    let explained = node.agent.explain(source, interface, web, Protocol::Tcp)?;
    let of_policy = explained.steps.iter().find(|step| step.what.starts_with("ingress of"));
    let step = of_policy.context("explain says nothing of the policy")?;
    page.say(format_args!("    · {}: {}", step.what, step.why));
    page.check((!step.what.ends_with(expected)).then_some("explain says otherwise"));
    Ok(())
}
