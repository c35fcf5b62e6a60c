//! Connections that policies forbid, and permit again.

use denizen_state::AttachmentId;

use super::*;
use crate::FirewallSettings;
use denizen_model::{
    ClusterPod, Family, NetworkPolicy, Peers, PodName, PolicyName, PolicyPeer, PolicyRule, Ports,
    Selector,
};

const POD: &str = "10.1.0.1";
const CLIENT: &str = "10.9.0.9";
/// Of IPv4.
const EVERYTHING: FlowSelection =
    FlowSelection { family: Family::V4, protocol: None, unanswered_syns: false };

fn with_firewall() -> Tracked {
    Tracked::with(Policy { firewall: Some(FirewallSettings::default()), ..policy() })
}

fn recorded(generation: u64, addresses: &[&str]) -> Event {
    let named: Vec<_> = addresses.iter().map(|ip| (*ip, "veth1")).collect();
    Event::Pods(pods(generation, &named))
}

/// Who may reach the pod, by a policy that selects it: all pods of its namespace, or nobody.
fn policy_is(admits: Option<bool>) -> Event {
    let Event::Pods(set) = recorded(1, &[POD]) else { panic!("the recorded pods") };
    let namespace = set.pods[0].pod.clone().expect("the runtime passed its name").namespace;
    let name = PolicyName { namespace, name: "p".into() };
    let own =
        PolicyPeer::Pods { namespaces: denizen_model::Namespaces::Own, pods: Selector::default() };
    let rule = PolicyRule { index: 0, peers: Peers::These(vec![own]), ports: Ports::All };
    let policy = |admits: bool| NetworkPolicy {
        name: name.clone(),
        pods: Selector::default(),
        ingress: Some(if admits { vec![rule.clone()] } else { Vec::new() }),
        egress: None,
        is_understood: true,
    };
    Event::NetworkPolicy(name.clone(), admits.map(policy))
}

/// The client is a pod of the same namespace.
fn client_is_a_pod() -> Event {
    let Event::NetworkPolicy(PolicyName { namespace, .. }, _) = policy_is(None) else {
        panic!("a policy")
    };
    let name = PodName { namespace, name: "client".into() };
    let pod = ClusterPod { ips: [ip(CLIENT)].into(), ..ClusterPod::named(name.clone()) };
    Event::ClusterPod(name, Some(pod.into()))
}

fn listed() -> Vec<Event> {
    Listing::FIREWALL.map(Event::Listed).into()
}

/// To the pod, the same after it was forbidden, and what the pod began.
fn flows() -> [TrackedFlow; 3] {
    let to = entry(Protocol::Tcp, "10.9.0.9:4000", "10.96.0.1:80", "10.1.0.1:8080");
    let from = entry(Protocol::Tcp, "10.1.0.1:4000", "10.9.0.9:80", "10.9.0.9:80");
    [to, TrackedFlow { is_marked: true, ..to }, from]
}

/// What becomes of each of the [`flows`].
fn treatments(tracked: &Tracked, candidates: &StaleCandidates) -> [Option<Treatment>; 3] {
    treatments_beside(tracked, candidates, &[])
}

/// The same while the ADDs of pods with these addresses wait.
fn treatments_beside(
    tracked: &Tracked,
    candidates: &StaleCandidates,
    awaited: &[&str],
) -> [Option<Treatment>; 3] {
    let awaited = awaited.iter().map(|address| ip(address)).collect();
    let mut filter = StaleFilter::new(candidates, &tracked.planner, &awaited);
    flows().map(|flow| filter.treatment(&flow))
}

#[test]
fn what_a_policy_forbids_is_marked_until_a_change_permits_it() {
    let [_, forbidden, _] = flows();
    let mut tracked = with_firewall();
    candidates_after(&mut tracked, [vec![recorded(1, &[POD])], listed()].concat());
    let candidates = candidates_after(&mut tracked, vec![policy_is(Some(false))]);
    assert_eq!(treatments(&tracked, &candidates), [Some(Treatment::Mark), None, None]);
    assert!(candidates.parts().contains(&EVERYTHING));
    // A change of the policy, of the client, and the policy's end.
    candidates_after(&mut tracked, vec![policy_is(Some(true))]);
    for change in [client_is_a_pod(), policy_is(None)] {
        let candidates = candidates_after(&mut tracked, vec![change]);
        assert!(candidates.may_permit(&forbidden), "{candidates:?}");
        assert!(candidates.parts().is_empty(), "what was forbidden is remembered");
        assert_eq!(treatments(&tracked, &candidates), [None, Some(Treatment::Unmark), None]);
    }
    // Then nothing of a pod that is gone counts.
    candidates_after(&mut tracked, vec![policy_is(Some(false))]);
    let candidates = candidates_after(&mut tracked, vec![recorded(2, &[])]);
    assert_eq!(treatments(&tracked, &candidates), [Some(Treatment::Delete); 3]);
}

/// Conntrack first saw a packet from the middle. What looks like an answer is permitted only if
/// both directions are: a client may choose a low port, and send what looks like an answer.
#[test]
fn what_began_unseen_is_judged_in_the_direction_that_was_seen_and_as_an_answer() {
    let mut tracked = with_firewall();
    candidates_after(&mut tracked, [vec![recorded(1, &[POD])], listed()].concat());
    let candidates = candidates_after(&mut tracked, vec![policy_is(Some(false))]);
    let none = HashSet::new();
    let mut filter = StaleFilter::new(&candidates, &tracked.planner, &none);
    let mut forbids = |source: &str, destination: &str, is_mid_stream| {
        let entry = entry(Protocol::Tcp, source, destination, destination);
        filter.treatment(&TrackedFlow { is_mid_stream, ..entry }) == Some(Treatment::Mark)
    };
    let cases = [
        ("an answer of the pod", "10.1.0.1:80", "10.9.0.9:40000", true),
        ("a question of the pod", "10.1.0.1:40000", "10.9.0.9:80", false),
        ("an answer to the pod, or a question", "10.9.0.9:2001", "10.1.0.1:50051", true),
        ("a question to the pod", "10.9.0.9:40000", "10.1.0.1:80", true),
        ("the pod began", "10.1.0.1:40000", "10.9.0.9:40001", false),
        ("the pod did not begin", "10.9.0.9:40001", "10.1.0.1:40000", true),
    ];
    for (name, source, destination, is_marked) in cases {
        assert_eq!(forbids(source, destination, true), is_marked, "{name}");
    }
    assert!(!forbids("10.1.0.1:80", "10.9.0.9:40000", false), "its beginning was seen");
}

/// The pod admits its namespace, and may send anywhere.
#[test]
fn what_began_unseen_goes_on_if_a_policy_permits_it() {
    let mut tracked = with_firewall();
    let known = [vec![recorded(1, &[POD]), client_is_a_pod()], listed()].concat();
    candidates_after(&mut tracked, known);
    let candidates = candidates_after(&mut tracked, vec![policy_is(Some(true))]);
    let none = HashSet::new();
    let mut filter = StaleFilter::new(&candidates, &tracked.planner, &none);
    for (client, server) in [("10.9.0.9:40000", "10.1.0.1:80"), ("10.1.0.1:40000", "10.9.0.9:80")] {
        for (first, then) in [(client, server), (server, client)] {
            let entry = entry(Protocol::Tcp, first, then, then);
            let treatment = filter.treatment(&TrackedFlow { is_mid_stream: true, ..entry });
            assert_eq!(treatment, None, "{client} to {server}, first seen from {first}");
        }
    }
}

/// It remembers nothing, and knows nothing yet.
#[test]
fn a_new_agent_searches_everywhere_for_what_was_forbidden_as_soon_as_all_is_known() {
    let mut tracked = with_firewall();
    let candidates = candidates_after(&mut tracked, vec![recorded(1, &[POD])]);
    assert!(candidates.parts().is_empty());
    assert_eq!(treatments(&tracked, &candidates), [None; 3]);
    let candidates = candidates_after(&mut tracked, listed());
    let everywhere = Family::BOTH.map(|family| FlowSelection { family, ..EVERYTHING });
    assert_eq!(candidates.parts(), everywhere.into());
    assert_eq!(treatments(&tracked, &candidates), [None, Some(Treatment::Unmark), None]);
    assert!(candidates.for_second_search().is_empty(), "once");
    let candidates = candidates_after(&mut tracked, vec![recorded(2, &[POD, "10.1.0.2"])]);
    assert!(candidates.parts().is_empty(), "once");
}

/// The state file was read after the address had changed hands.
#[test]
fn what_the_former_pod_of_an_address_had_is_deleted_before_the_next_one_begins() {
    let mut tracked = with_firewall();
    let known = [vec![recorded(1, &[POD, "10.1.0.2"]), policy_is(Some(true))], listed()].concat();
    candidates_after(&mut tracked, known);
    let Event::Pods(mut set) = recorded(2, &[POD, "10.1.0.2"]) else { panic!("the recorded pods") };
    set.pods[0].id = AttachmentId::new("another", "eth0");
    let candidates = candidates_after(&mut tracked, vec![Event::Pods(set)]);
    assert!(
        candidates.has_departed_of(&[ip(POD)]) && !candidates.has_departed_of(&[ip("10.1.0.2")])
    );
    assert_eq!(treatments_beside(&tracked, &candidates, &[POD]), [Some(Treatment::Delete); 3]);
    assert_eq!(treatments(&tracked, &candidates), [Some(Treatment::Mark), None, None], "begun");
}
