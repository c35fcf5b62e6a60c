//! `loadBalancerSourceRanges`: who may use a load balancer's addresses.

use anyhow::Result;
use denizen_tests::node::fixture::Host;
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::json;

use crate::context::{AgentContext, BALANCER, Fate, HTTP, at, balanced, by};

#[test]
fn source_ranges_bind_pods_and_the_node() -> Result<()> {
    let context = AgentContext::new("ranges", &[], |fixture| {
        let ranges = |objects: &mut [serde_json::Value], ranges: &[&str]| {
            objects[0]["spec"]["loadBalancerSourceRanges"] = json!(ranges);
        };
        let mut outside = balanced(fixture, &HTTP, &[Host::Remote])?;
        ranges(&mut outside, &[" 203.0.113.0/24", "2600:5200::/32 "]);
        Ok(outside)
    })?;
    for (inside, guarded) in at(10, 80).into_iter().zip(at(BALANCER, 80)) {
        assert_eq!(context.fate(Host::Outside, guarded, Tcp)?, by([Host::Remote]), "{guarded}");
        for who in [Host::Bridged, Host::Routed, Host::ThisNode] {
            assert_eq!(context.fate(who, guarded, Tcp)?, Fate::Dropped, "{who:?} to {guarded}");
            assert_eq!(context.fate(who, inside, Tcp)?, by([Host::Remote]), "{who:?} to {inside}");
        }
    }
    Ok(())
}
