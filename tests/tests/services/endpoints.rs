//! Which endpoints of a service's slices serve: their conditions, their addresses, and whose they
//! are.

use anyhow::Result;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::json;

use crate::context::{AgentContext, Fate, HTTP, at, by, condition, endpoints_of};

#[test]
fn only_an_endpoints_first_address_counts() -> Result<()> {
    let context = AgentContext::new("eps-first", &[], |fixture| {
        let mut objects = fixture.service("web", 10, &HTTP, &[Host::Bridged])?;
        let more = service_ips(1).map(|like| fixture.address(Host::Routed, like));
        for (endpoint, more) in
            endpoints_of(&mut objects, fixture, Host::Bridged).into_iter().zip(more)
        {
            let first = endpoint["addresses"][0].clone();
            endpoint["addresses"] = json!([first, more?]);
        }
        Ok(objects)
    })?;
    for to in at(10, 80) {
        assert_eq!(context.fate(Host::Outside, to, Tcp)?, by([Host::Bridged]), "{to}");
    }
    Ok(())
}

#[test]
fn what_is_not_written_is_ready_and_serving() -> Result<()> {
    let context = AgentContext::new("eps-unwritten", &[], |fixture| {
        let mut objects =
            fixture.service("web", 10, &HTTP, &[Host::Bridged, Host::Routed, Host::Remote])?;
        condition(&mut objects, fixture, Host::Bridged, &json!({}));
        condition(&mut objects, fixture, Host::Routed, &json!({ "ready": null }));
        condition(&mut objects, fixture, Host::Remote, &json!({ "ready": false }));
        let mut last = fixture.service("last", 11, &HTTP, &[Host::Remote, Host::Routed])?;
        condition(
            &mut last,
            fixture,
            Host::Remote,
            &json!({ "ready": false, "terminating": true }),
        );
        condition(&mut last, fixture, Host::Routed, &json!({ "ready": false, "serving": false }));
        Ok([objects, last].concat())
    })?;
    for to in at(10, 80) {
        let unwritten = by([Host::Bridged, Host::Routed]);
        assert_eq!(context.fate(Host::Outside, to, Tcp)?, unwritten, "{to}");
    }
    for to in at(11, 80) {
        assert_eq!(
            context.fate(Host::Outside, to, Tcp)?,
            by([Host::Remote]),
            "{to}: the last resort"
        );
    }
    Ok(())
}

#[test]
fn a_slice_may_move_to_another_service() -> Result<()> {
    let objects = |fixture: &Fixture, owner: &str| {
        let mut objects = fixture.service("web", 10, &HTTP, &[Host::Bridged])?;
        for slice in &mut objects[1..] {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = owner.into();
        }
        objects.extend(fixture.service("shop", 11, &HTTP, &[])?);
        anyhow::Ok(objects)
    };
    let context = AgentContext::new("eps-move", &[], |fixture| objects(fixture, "web"))?;
    let fates = |number| at(number, 80).map(|to| context.fate(Host::Routed, to, Tcp));
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (by([Host::Bridged]), Fate::Refused));
    }
    context.becomes(&objects(&context.fixture, "shop")?)?;
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (Fate::Refused, by([Host::Bridged])));
    }
    Ok(())
}
