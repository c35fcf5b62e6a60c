//! `externalTrafficPolicy`: which endpoints serve what comes from outside the cluster, and whose
//! source they see. The flow table has more of it: the cases `etp-…` and `policy-matrix`.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::fixture::{EVERYONE, Fixture, Host, service_ips};
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::{Value, json};

use crate::context::{
    AgentContext, BALANCER, Fate, HTTP, NODE_PORT, at, at_node, balanced, by, condition, draining,
    endpoints_of, local,
};

/// Which [`service_ips`] are the service's external IPs.
const EXTERNAL: u8 = 101;

/// A service under `policy` that is reached from outside in every way: at a load balancer's
/// address, an external IP and a node port, in both families.
fn service(fixture: &Fixture, policy: &str, members: &[Host]) -> Result<Vec<Value>> {
    let mut objects = balanced(fixture, &[HTTP[0].at_node(NODE_PORT)], members)?;
    objects[0]["spec"]["externalTrafficPolicy"] = policy.into();
    objects[0]["spec"]["externalIPs"] = json!(service_ips(EXTERNAL));
    Ok(objects)
}

fn frontends(fixture: &Fixture) -> Result<Vec<SocketAddr>> {
    Ok([at(BALANCER, 80).to_vec(), at(EXTERNAL, 80).to_vec(), at_node(fixture, NODE_PORT)?]
        .concat())
}

/// Plays a service with these endpoints with every backend: everyone asks at every frontend at
/// once, and `expected` says who answers, and whether under the client's own address.
fn everyone_asks(
    label: &str,
    policy: &str,
    members: &[Host],
    expected: impl Fn(Host) -> (Fate, bool),
) -> Result<()> {
    for backend in Backend::ALL {
        let flags = backend.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let context =
            AgentContext::new(label, &flags, |fixture| service(fixture, policy, members))?;
        let frontends = frontends(&context.fixture)?;
        let questions = frontends.into_iter().flat_map(|to| EVERYONE.map(|who| (who, to)));
        thread::scope(|scope| {
            let ask = |(who, to)| {
                let (context, expected) = (&context, expected(who));
                scope.spawn(move || {
                    asks(context, who, to, expected)
                        .with_context(|| format!("{policy}, {backend:?}"))
                })
            };
            let asking: Vec<_> = questions.map(ask).collect();
            asking.into_iter().try_for_each(|thread| thread.join().expect("a client's thread"))
        })?;
    }
    Ok(())
}

fn asks(
    context: &AgentContext,
    who: Host,
    to: SocketAddr,
    (fate, keeps): (Fate, bool),
) -> Result<()> {
    let found = context.fate(who, to, Tcp)?;
    ensure!(found == fate, "{who:?} to {to}: {found:?}, not {fate:?}");
    // What the node itself sends has one of its addresses anyway.
    if !matches!(fate, Fate::Answered(_)) || who == Host::ThisNode {
        return Ok(());
    }
    let outcome = context.fixture.probe(who, to, Tcp)?;
    let endpoint = outcome.endpoint().with_context(|| format!("{who:?} to {to}: {outcome:?}"))?;
    // A pod that reaches itself is masqueraded whatever the policy.
    let keeps = keeps && context.fixture.owner(endpoint.ip()) != Some(who);
    let masqueraded = context.fixture.was_masqueraded(who, &outcome)?;
    ensure!(masqueraded != keeps, "{who:?} to {to}: {outcome:?}, keeps its source: {keeps}");
    Ok(())
}

fn is_local_pod(who: Host) -> bool {
    matches!(who, Host::Bridged | Host::Routed)
}

/// The endpoint may be on another node: its answer must come back through this one, so that
/// everybody is masqueraded.
#[test]
fn cluster_uses_all_endpoints_and_masquerades_everybody() -> Result<()> {
    let members = [Host::Bridged, Host::Remote];
    everyone_asks("etp-cluster", "Cluster", &members, |_| (by(members), false))
}

/// What comes from outside goes to endpoints on this node and keeps its source. The policy does not
/// bind this node's pods and the node itself: they may use every endpoint.
#[test]
fn local_keeps_outside_traffic_on_this_node_with_its_source() -> Result<()> {
    everyone_asks("etp-local", "Local", &[Host::Routed, Host::Remote], |who| {
        let of_cluster = is_local_pod(who) || who == Host::ThisNode;
        let answering =
            if of_cluster { vec![Host::Routed, Host::Remote] } else { vec![Host::Routed] };
        (by(answering), true)
    })
}

/// Dropped, not refused: the client's retry may be routed to a node that has an endpoint.
#[test]
fn local_drops_outside_traffic_where_this_node_has_no_endpoint() -> Result<()> {
    everyone_asks("etp-none", "Local", &[Host::Remote], |who| {
        let of_cluster = is_local_pod(who) || who == Host::ThisNode;
        (if of_cluster { by([Host::Remote]) } else { Fate::Dropped }, true)
    })
}

#[test]
fn each_set_falls_back_to_terminating_ones_alone() -> Result<()> {
    let context = AgentContext::new("etp-term", &[], |fixture| {
        let mut objects = local(fixture, &HTTP, &[Host::Bridged, Host::Remote])?;
        condition(&mut objects, fixture, Host::Bridged, &draining());
        Ok(objects)
    })?;
    for (inside, outside) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(context.fate(Host::Routed, inside, Tcp)?, by([Host::Remote]), "one is ready");
        assert_eq!(context.fate(Host::Outside, outside, Tcp)?, by([Host::Bridged]), "none here is");
    }
    Ok(())
}

#[test]
fn an_endpoint_without_a_node_is_never_local() -> Result<()> {
    let context = AgentContext::new("etp-nodeless", &[], |fixture| {
        let ports = [HTTP[0].at_node(NODE_PORT)];
        let mut objects = local(fixture, &ports, &[Host::Bridged])?;
        for endpoint in endpoints_of(&mut objects, fixture, Host::Bridged) {
            endpoint.as_object_mut().map(|fields| fields.remove("nodeName"));
        }
        Ok(objects)
    })?;
    for (inside, outside) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(context.fate(Host::Outside, outside, Tcp)?, Fate::Dropped, "{outside}");
        assert_eq!(context.fate(Host::Routed, inside, Tcp)?, by([Host::Bridged]), "{inside}");
    }
    Ok(())
}
