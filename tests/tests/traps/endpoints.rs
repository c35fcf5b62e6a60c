//! Which endpoints serve.

use anyhow::Result;
use denizen_tests::cast::{Who, service_ips};
use denizen_tests::http::{fetch, url};
use denizen_tests::manifest::Port;
use denizen_tests::probe::Protocol::Tcp;
use serde_json::json;

use super::{
    BALANCER, Fate, HTTP, NODE_PORT, Trap, at, balanced, by, condition, endpoints_of, local,
};

const ALL: [Who; 3] = [Who::Bridged, Who::Routed, Who::Remote];
/// Serves still, but not for long.
fn draining() -> serde_json::Value {
    json!({ "ready": false, "serving": true, "terminating": true })
}

#[test]
fn trap_04_only_an_endpoints_first_address_counts() -> Result<()> {
    let trap = Trap::set("04", &[], |cast| {
        let mut objects = cast.service("web", 10, &HTTP, &[Who::Bridged])?;
        let more = service_ips(1).map(|like| cast.address(Who::Routed, like));
        for (endpoint, more) in endpoints_of(&mut objects, cast, Who::Bridged).into_iter().zip(more)
        {
            let first = endpoint["addresses"][0].clone();
            endpoint["addresses"] = json!([first, more?]);
        }
        Ok(objects)
    })?;
    for to in at(10, 80) {
        assert_eq!(trap.fate(Who::Outside, to, Tcp)?, by([Who::Bridged]), "{to}");
    }
    Ok(())
}

#[test]
fn trap_05_what_is_not_written_is_ready_and_serving() -> Result<()> {
    let trap = Trap::set("05", &[], |cast| {
        let mut objects = cast.service("web", 10, &HTTP, &ALL)?;
        condition(&mut objects, cast, Who::Bridged, &json!({}));
        condition(&mut objects, cast, Who::Routed, &json!({ "ready": null }));
        condition(&mut objects, cast, Who::Remote, &json!({ "ready": false }));
        let mut last = cast.service("last", 11, &HTTP, &[Who::Remote, Who::Routed])?;
        condition(&mut last, cast, Who::Remote, &json!({ "ready": false, "terminating": true }));
        condition(&mut last, cast, Who::Routed, &json!({ "ready": false, "serving": false }));
        Ok([objects, last].concat())
    })?;
    for to in at(10, 80) {
        let unwritten = by([Who::Bridged, Who::Routed]);
        assert_eq!(trap.fate(Who::Outside, to, Tcp)?, unwritten, "{to}");
    }
    for to in at(11, 80) {
        assert_eq!(trap.fate(Who::Outside, to, Tcp)?, by([Who::Remote]), "{to}: the last resort");
    }
    Ok(())
}

#[test]
fn trap_06_each_set_falls_back_to_terminating_ones_alone() -> Result<()> {
    let trap = Trap::set("06", &[], |cast| {
        let mut objects = local(cast, &HTTP, &[Who::Bridged, Who::Remote])?;
        condition(&mut objects, cast, Who::Bridged, &draining());
        Ok(objects)
    })?;
    for (inside, outside) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(trap.fate(Who::Routed, inside, Tcp)?, by([Who::Remote]), "one is ready");
        assert_eq!(trap.fate(Who::Outside, outside, Tcp)?, by([Who::Bridged]), "none here is");
    }
    Ok(())
}

#[test]
fn trap_07_the_health_port_counts_addresses_and_no_terminating_ones() -> Result<()> {
    const CHECK: u16 = 32100;
    const TWO: [Port; 2] = [HTTP[0], Port::tcp("more", 81, super::PORT)];
    let trap = Trap::set("07", &[], |cast| {
        let mut objects = local(cast, &TWO, &[Who::Bridged])?;
        objects[0]["spec"]["healthCheckNodePort"] = CHECK.into();
        Ok(objects)
    })?;
    let cast = &trap.cast;
    let node = cast.address(Who::ThisNode, service_ips(1)[0])?;
    let ask = || fetch(&cast.cluster.world.client, &url(node, CHECK, "/"), &[]);
    let reply = ask()?;
    assert_eq!((reply.status, &reply.json()?["localEndpoints"]), (200, &json!(1)), "{reply:?}");
    let mut objects = local(cast, &TWO, &[Who::Bridged])?;
    objects[0]["spec"]["healthCheckNodePort"] = CHECK.into();
    condition(&mut objects, cast, Who::Bridged, &draining());
    trap.becomes(&objects)?;
    assert_eq!(ask()?.status, 503, "new connections should go elsewhere");
    assert_eq!(
        trap.fate(Who::Outside, at(BALANCER, 80)[0], Tcp)?,
        by([Who::Bridged]),
        "those that come are served"
    );
    Ok(())
}

#[test]
fn trap_13_a_slice_may_move_to_another_service() -> Result<()> {
    let objects = |cast: &denizen_tests::cast::Cast, owner: &str| {
        let mut objects = cast.service("web", 10, &HTTP, &[Who::Bridged])?;
        for slice in &mut objects[1..] {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = owner.into();
        }
        objects.extend(cast.service("shop", 11, &HTTP, &[])?);
        anyhow::Ok(objects)
    };
    let trap = Trap::set("13", &[], |cast| objects(cast, "web"))?;
    let fates = |number| at(number, 80).map(|to| trap.fate(Who::Routed, to, Tcp));
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (by([Who::Bridged]), Fate::Refused));
    }
    trap.becomes(&objects(&trap.cast, "shop")?)?;
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (Fate::Refused, by([Who::Bridged])));
    }
    Ok(())
}

#[test]
fn trap_14_an_endpoint_without_a_node_is_never_local() -> Result<()> {
    let trap = Trap::set("14", &[], |cast| {
        let ports = [HTTP[0].at_node(NODE_PORT)];
        let mut objects = local(cast, &ports, &[Who::Bridged])?;
        for endpoint in endpoints_of(&mut objects, cast, Who::Bridged) {
            endpoint.as_object_mut().map(|fields| fields.remove("nodeName"));
        }
        Ok(objects)
    })?;
    for (inside, outside) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(trap.fate(Who::Outside, outside, Tcp)?, Fate::Dropped, "{outside}");
        assert_eq!(trap.fate(Who::Routed, inside, Tcp)?, by([Who::Bridged]), "{inside}");
    }
    Ok(())
}

#[test]
fn trap_15_a_pod_reaches_itself_under_policy_local_too() -> Result<()> {
    let trap = Trap::set("15", &[], |cast| local(cast, &HTTP, &[Who::Bridged]))?;
    for to in [at(10, 80), at(BALANCER, 80)].concat() {
        assert_eq!(trap.fate(Who::Bridged, to, Tcp)?, by([Who::Bridged]), "{to}");
        let outcome = trap.cast.ask(Who::Bridged, to, Tcp)?;
        assert!(trap.cast.was_masqueraded(Who::Bridged, &outcome)?, "{to}: {outcome:?}");
    }
    Ok(())
}

#[test]
fn trap_09_source_ranges_bind_pods_and_the_node() -> Result<()> {
    let trap = Trap::set("09", &[], |cast| {
        let ranges = |objects: &mut [serde_json::Value], ranges: &[&str]| {
            objects[0]["spec"]["loadBalancerSourceRanges"] = json!(ranges);
        };
        let mut outside = balanced(cast, &HTTP, &[Who::Remote])?;
        ranges(&mut outside, &[" 203.0.113.0/24", "2600:5200::/32 "]);
        Ok(outside)
    })?;
    for (inside, guarded) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(trap.fate(Who::Outside, guarded, Tcp)?, by([Who::Remote]), "{guarded}");
        for who in [Who::Bridged, Who::Routed, Who::ThisNode] {
            assert_eq!(trap.fate(who, guarded, Tcp)?, Fate::Dropped, "{who:?} to {guarded}");
            assert_eq!(trap.fate(who, inside, Tcp)?, by([Who::Remote]), "{who:?} to {inside}");
        }
    }
    Ok(())
}
