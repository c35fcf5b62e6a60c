//! Services that `service.kubernetes.io/service-proxy-name` gives to another proxy, which
//! translates behind us: what it translates passes, and what nobody has translated does not.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use denizen_tests::agent::{START_TIMEOUT, programmed};
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{EVERYONE, Fixture, Host, PORT, service_ips};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use serde_json::{Value, json};

use crate::context::{AgentContext, HTTP, at};

/// The other proxy's Service.
const FOREIGN: u8 = 20;
/// An address that nobody has.
const UNALLOCATED: u8 = 99;

/// The range of cluster IPs, and these Services.
fn with_range(services: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["172.30.0.0/16", "fd00:172:30::/112"] },
    });
    [range].into_iter().chain(services).collect()
}

fn foreign(fixture: &Fixture) -> Result<Vec<Value>> {
    let mut objects = fixture.service("foreign", FOREIGN, &HTTP, &[Host::Remote])?;
    for object in &mut objects {
        object["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "another".into();
    }
    Ok(with_range(objects))
}

/// The other proxy's rules, at the priority of most. Answers come back through the node.
fn translate(fixture: &Fixture) -> Result<()> {
    for (family, service) in ["ip", "ip6"].into_iter().zip(service_ips(FOREIGN)) {
        let endpoint = SocketAddr::new(fixture.address(Host::Remote, service)?, PORT);
        fixture.cluster.world.node.nft(&format!(
            "table {family} another {{
                chain translate {{
                    {family} daddr {service} tcp dport 80 dnat to {endpoint}
                }}
                chain arriving {{
                    type nat hook prerouting priority -100
                    jump translate
                }}
                chain sending {{
                    type nat hook output priority -100
                    jump translate
                }}
                chain leaving {{
                    type nat hook postrouting priority 100
                    ct status dnat masquerade
                }}
            }}"
        ))?;
    }
    Ok(())
}

fn ask(fixture: &Fixture, who: Host, to: SocketAddr) -> Result<Outcome> {
    let probe = Probe::tcp(to).from(fixture.address(who, to.ip())?).timeout(SILENCE);
    Ok(probe.send_in(fixture.place(who).0))
}

#[test]
fn what_another_proxy_translates_passes_and_what_nobody_translates_is_dropped() -> Result<()> {
    let context = AgentContext::new("another", &[], foreign)?;
    let (fixture, agent) = (&context.fixture, &context.agent);
    let all = |to: [SocketAddr; 2]| {
        to.into_iter().flat_map(|to| EVERYONE.map(|who| (who, to))).collect::<Vec<_>>()
    };
    let is_dropped = |number| -> Result<()> {
        for (who, to) in all(at(number, 80)) {
            let outcome = ask(fixture, who, to)?;
            ensure!(outcome == Outcome::Dropped, "{who:?} to {to}: {outcome:?}");
        }
        Ok(())
    };
    is_dropped(UNALLOCATED)?;
    is_dropped(FOREIGN)?;
    translate(fixture)?;
    for (who, to) in all(at(FOREIGN, 80)) {
        let endpoint = ask(fixture, who, to)?.endpoint();
        let remote = SocketAddr::new(fixture.address(Host::Remote, to.ip())?, PORT);
        ensure!(endpoint == Some(remote), "{who:?} to {to}: {endpoint:?}");
    }
    is_dropped(UNALLOCATED)?;
    for (who, to) in all(at(FOREIGN, 80)) {
        let output = fixture.explain(agent, who, to, Protocol::Tcp)?;
        let text = format!("{:?}", output.steps);
        ensure!(output.verdict == "foreign", "{output:?}");
        ensure!(text.contains("default/foreign") && text.contains("another"), "{text}");
        ensure!(!text.contains("no service has"), "{text}");
    }
    let output = fixture.explain(agent, Host::Outside, at(UNALLOCATED, 80)[0], Protocol::Tcp)?;
    ensure!(output.verdict == "drop", "{output:?}");
    Ok(())
}

/// It changes hands while the agent runs, both ways.
#[test]
fn a_service_is_given_to_another_proxy_and_comes_back() -> Result<()> {
    let context = AgentContext::new("another-give", &[], foreign)?;
    let (fixture, agent) = (&context.fixture, &context.agent);
    let [to, _] = at(FOREIGN, 80);
    let ours = with_range(fixture.service("foreign", FOREIGN, &HTTP, &[Host::Remote])?);
    for (objects, verdict) in [(ours, "forward"), (foreign(fixture)?, "foreign")] {
        let change = || fixture.cluster.manifests.put("services", &objects);
        programmed(agent, change, || ())?;
        eventually(verdict, START_TIMEOUT, || {
            let output = fixture.explain(agent, Host::Outside, to, Protocol::Tcp)?;
            Ok(output.verdict == verdict)
        })?;
        let outcome = ask(fixture, Host::Outside, to)?;
        ensure!(outcome.endpoint().is_some() == (verdict == "forward"), "{outcome:?}");
    }
    Ok(())
}

/// A SYN that was dropped leaves nothing behind: the next one of the same attempt is looked up
/// anew.
#[test]
fn an_attempt_to_an_address_without_a_service_succeeds_once_it_has_one() -> Result<()> {
    let context = AgentContext::new("another-new", &[], |_| Ok(with_range([])))?;
    let fixture = &context.fixture;
    let mut attempts = Vec::new();
    for to in at(UNALLOCATED, 80) {
        for who in EVERYONE {
            let probe = Probe::tcp(to).from(fixture.address(who, to.ip())?);
            attempts.push((who, probe, fixture.place(who).0.run(|| probe.begin())??));
        }
    }
    // Long enough for the first SYN to be dropped, and less than until the next.
    std::thread::sleep(SILENCE);
    context.becomes(&with_range(fixture.service("web", UNALLOCATED, &HTTP, &[Host::Remote])?))?;
    for (who, probe, socket) in attempts {
        let outcome = probe.end(socket);
        ensure!(outcome.endpoint().is_some(), "{who:?} to {}: {outcome:?}", probe.to);
    }
    Ok(())
}
