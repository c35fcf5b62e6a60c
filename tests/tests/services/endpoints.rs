//! Which endpoints of a service's slices serve: their conditions, their addresses, and whose they
//! are.

use anyhow::Result;
use denizen_tests::node::fixture::{Fixture, Who, service_ips};
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::json;

use crate::context::{AgentContext, Fate, HTTP, at, by, condition, endpoints_of};

#[test]
fn only_an_endpoints_first_address_counts() -> Result<()> {
    let context = AgentContext::new("eps-first", &[], |fixture| {
        let mut objects = fixture.service("web", 10, &HTTP, &[Who::Bridged])?;
        let more = service_ips(1).map(|like| fixture.address(Who::Routed, like));
        for (endpoint, more) in
            endpoints_of(&mut objects, fixture, Who::Bridged).into_iter().zip(more)
        {
            let first = endpoint["addresses"][0].clone();
            endpoint["addresses"] = json!([first, more?]);
        }
        Ok(objects)
    })?;
    for to in at(10, 80) {
        assert_eq!(context.fate(Who::Outside, to, Tcp)?, by([Who::Bridged]), "{to}");
    }
    Ok(())
}

#[test]
fn what_is_not_written_is_ready_and_serving() -> Result<()> {
    let context = AgentContext::new("eps-unwritten", &[], |fixture| {
        let mut objects =
            fixture.service("web", 10, &HTTP, &[Who::Bridged, Who::Routed, Who::Remote])?;
        condition(&mut objects, fixture, Who::Bridged, &json!({}));
        condition(&mut objects, fixture, Who::Routed, &json!({ "ready": null }));
        condition(&mut objects, fixture, Who::Remote, &json!({ "ready": false }));
        let mut last = fixture.service("last", 11, &HTTP, &[Who::Remote, Who::Routed])?;
        condition(&mut last, fixture, Who::Remote, &json!({ "ready": false, "terminating": true }));
        condition(&mut last, fixture, Who::Routed, &json!({ "ready": false, "serving": false }));
        Ok([objects, last].concat())
    })?;
    for to in at(10, 80) {
        let unwritten = by([Who::Bridged, Who::Routed]);
        assert_eq!(context.fate(Who::Outside, to, Tcp)?, unwritten, "{to}");
    }
    for to in at(11, 80) {
        assert_eq!(
            context.fate(Who::Outside, to, Tcp)?,
            by([Who::Remote]),
            "{to}: the last resort"
        );
    }
    Ok(())
}

#[test]
fn a_slice_may_move_to_another_service() -> Result<()> {
    let objects = |fixture: &Fixture, owner: &str| {
        let mut objects = fixture.service("web", 10, &HTTP, &[Who::Bridged])?;
        for slice in &mut objects[1..] {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] = owner.into();
        }
        objects.extend(fixture.service("shop", 11, &HTTP, &[])?);
        anyhow::Ok(objects)
    };
    let context = AgentContext::new("eps-move", &[], |fixture| objects(fixture, "web"))?;
    let fates = |number| at(number, 80).map(|to| context.fate(Who::Routed, to, Tcp));
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (by([Who::Bridged]), Fate::Refused));
    }
    context.becomes(&objects(&context.fixture, "shop")?)?;
    for (web, shop) in fates(10).into_iter().zip(fates(11)) {
        assert_eq!((web?, shop?), (Fate::Refused, by([Who::Bridged])));
    }
    Ok(())
}
