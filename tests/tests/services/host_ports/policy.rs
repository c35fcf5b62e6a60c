//! NetworkPolicy sees the pod's port and the client's own address.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::fixture::Who;
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::policy::{
    LabelSelector, NetworkPolicy, ObjectMeta, PodObject, PodSpec, PodStatus, PolicyPeer,
    PolicyRule, PolicyWorld,
};
use serde_json::json;

use super::context::{BOUND, Context, Services, port};

#[test]
fn a_policy_judges_the_client() -> Result<()> {
    for services in Services::ALL {
        let flags = ["--host-ports=on", "--network-policy=on"];
        let context = Context::with("hp-policy", services, &flags, |_| Ok(Vec::new()))?;
        let to = SocketAddr::new(context.addresses()[0], 8080);
        let client = context.fixture.address(Who::Outside, to.ip())?;
        let rule = PolicyRule::from([PolicyPeer::block(format!("{client}/32"), [])]);
        let policy =
            NetworkPolicy::new("default", "some", LabelSelector::default()).ingress([rule]);
        // Its labels are known after its ADD.
        let name = "asking";
        let asking = context.asks_at_once(name, Wiring::Bridged, &json!([port(8080)]))?;
        let metadata = ObjectMeta {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{}", asking.pod.netns.name()),
            ..ObjectMeta::default()
        };
        let spec = PodSpec { node_name: NODE.to_owned(), ..PodSpec::default() };
        let pods = vec![PodObject { metadata, spec, status: PodStatus::default() }];
        let world = PolicyWorld { policies: vec![policy], pods, ..PolicyWorld::default() };
        context.fixture.cluster.manifests.put("policies", &world.manifests())?;
        let ask = |who| {
            let from = context.fixture.address(who, to.ip())?;
            anyhow::Ok(
                Probe::tcp(to).from(from).patience(SILENCE).ask_in(context.fixture.place(who).0),
            )
        };
        eventually("the client is let in", BOUND, || Ok(ask(Who::Outside)?.endpoint().is_some()))?;
        eventually("the others are kept out", BOUND, || Ok(ask(Who::Remote)? == Outcome::Dropped))?;
        context.is_answered(Who::Outside, to, Protocol::Tcp, &asking)?;
        let explained = context.explain(Who::Remote, to, Protocol::Tcp)?;
        ensure!(explained.verdict == "drop", "{services:?}: {explained:?}");
    }
    Ok(())
}
