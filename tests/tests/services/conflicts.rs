//! Services that claim the same address and port.

use anyhow::Result;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::json;

use crate::context::{AgentContext, HTTP, at, by};

/// Which of them comes first in the folder, or changed last, is no reason.
#[test]
fn one_of_two_services_with_one_address_wins_and_stays() -> Result<()> {
    const SHARED: u8 = 200;
    let rivals = |fixture: &Fixture, round: usize| {
        let one = |name: &str, number: u8, member: Host, created: &str| {
            let mut objects = fixture.service(name, number, &HTTP, &[member])?;
            objects[0]["metadata"]["creationTimestamp"] = created.into();
            objects[0]["metadata"]["annotations"] = json!({ "round": round.to_string() });
            objects[0]["spec"]["externalIPs"] = json!(service_ips(SHARED));
            anyhow::Ok(objects)
        };
        let mut both = [
            one("a-younger", 10, Host::Remote, "2026-02-01T00:00:00Z")?,
            one("b-older", 11, Host::Bridged, "2026-01-01T00:00:00Z")?,
        ];
        both.rotate_left(round % 2);
        anyhow::Ok(both.concat())
    };
    let context = AgentContext::new("rivals", &[], |fixture| rivals(fixture, 0))?;
    for round in 1..=8 {
        for to in at(SHARED, 80) {
            assert_eq!(context.fate(Host::Outside, to, Tcp)?, by([Host::Bridged]), "round {round}");
        }
        let mut changed = rivals(&context.fixture, round)?;
        // Something to program each time.
        changed.extend(context.fixture.service(
            &format!("other-{round}"),
            12,
            &HTTP,
            &[Host::Routed],
        )?);
        context.becomes(&changed)?;
    }
    let log = context.agent.log();
    let mut warned = log.lines().filter(|line| line.contains("two services claim"));
    assert!(warned.any(|line| line.contains("loser=default/a-younger")), "{log}");
    Ok(())
}
