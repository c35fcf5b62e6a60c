//! The sender's egress and the receiver's ingress say different things of one connection.

use denizen_tests::policy::{NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

use super::{label, peers};
use crate::case::Case;

/// What a policy permits at its end of connections from pod b of namespace y to pod c of z.
#[derive(Debug, Clone, Copy)]
enum Permits {
    Nothing,
    All,
    ThePod,
    TheAddress,
}

const ALL: [Permits; 4] = [Permits::Nothing, Permits::All, Permits::ThePod, Permits::TheAddress];

pub fn cases(world: &PolicyWorld) -> Vec<Case> {
    let case = |(source, destination): (Permits, Permits)| {
        let egress = rules(source, world, "z", "c", PolicyRule::to);
        let ingress = rules(destination, world, "y", "b", PolicyRule::from);
        Case::new(format!("the source permits {source:?}, the destination {destination:?}"))
            .put(NetworkPolicy::new("y", "source", label("pod", "b")).egress(egress))
            .put(NetworkPolicy::new("z", "destination", label("pod", "c")).ingress(ingress))
            .expect_oracle()
    };
    let pairs = ALL.into_iter().flat_map(|source| ALL.map(|destination| (source, destination)));
    pairs.map(case).collect()
}

fn rules(
    permits: Permits,
    world: &PolicyWorld,
    namespace: &str,
    pod: &str,
    rule: impl Fn(Vec<PolicyPeer>) -> PolicyRule,
) -> Vec<PolicyRule> {
    match permits {
        Permits::Nothing => vec![],
        Permits::All => vec![PolicyRule::all()],
        Permits::ThePod => {
            vec![rule(vec![PolicyPeer::both(label("ns", namespace), label("pod", pod))])]
        }
        Permits::TheAddress => vec![rule(peers::alone(world, namespace, pod))],
    }
}
