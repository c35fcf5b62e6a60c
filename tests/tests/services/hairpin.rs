//! A pod that reaches itself through a service. It must see the node as the client, or else it
//! would answer itself directly, past the translation.

use anyhow::Result;
use denizen_tests::fixture::{Fixture, Who, every_protocol, every_way};
use denizen_tests::probe::Protocol::Tcp;

use crate::context::{AgentContext, BALANCER, HTTP, at, by, local};

#[test]
fn a_pod_reaches_itself_through_its_service() -> Result<()> {
    let fixture = Fixture::new("hairpin")?;
    let ports = every_protocol();
    for (who, number) in [(Who::Bridged, 31), (Who::Routed, 32)] {
        let name = format!("self-{number}");
        fixture.cluster.manifests.put(&name, &fixture.service(&name, number, &ports, &[who])?)?;
    }
    let _agent = fixture.cluster.start_agent()?;
    for (who, other, number) in [(Who::Bridged, Who::Routed, 31), (Who::Routed, Who::Bridged, 32)] {
        for (to, protocol) in every_way(number) {
            let itself = fixture.ask(who, to, protocol)?;
            assert!(
                fixture.was_masqueraded(who, &itself)?,
                "{who:?} to itself over {to}/{protocol}: {itself:?}"
            );
            // Only the pair of itself and itself: another pod keeps its address.
            let another = fixture.ask(other, to, protocol)?;
            assert!(
                !fixture.was_masqueraded(other, &another)?,
                "{other:?} to {to}/{protocol}: {another:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_pod_reaches_itself_under_policy_local_too() -> Result<()> {
    let context =
        AgentContext::new("hairpin-local", &[], |fixture| local(fixture, &HTTP, &[Who::Bridged]))?;
    for to in [at(10, 80), at(BALANCER, 80)].concat() {
        assert_eq!(context.fate(Who::Bridged, to, Tcp)?, by([Who::Bridged]), "{to}");
        let outcome = context.fixture.ask(Who::Bridged, to, Tcp)?;
        assert!(context.fixture.was_masqueraded(Who::Bridged, &outcome)?, "{to}: {outcome:?}");
    }
    Ok(())
}
