//! UDP and SCTP, and that neither is TCP.

use denizen_tests::packets::probe::Protocol::{self, Sctp, Tcp, Udp};
use denizen_tests::policy::{PolicyPeer, PolicyPort, PolicyRule};

use super::{a_from, all, named, ns, pod, x};
use crate::case::Case;

pub fn cases() -> Vec<Case> {
    let a_at = |protocol, port| {
        x(pod("a")).ingress([PolicyRule::all().at([PolicyPort::number(protocol, port)])])
    };
    let others = vec![
        Case::new("not mistakenly treat 'protocol: SCTP' as 'protocol: TCP', even if the plugin doesn't support SCTP")
            .put(named("x", "deny-all", all()).ingress([]))
            .put(a_at(Sctp, 81))
            .expect(Tcp, 81, "* -> X"),
        Case::new("properly isolate pods that are selected by a policy allowing SCTP, even if the plugin doesn't support SCTP")
            .put(a_at(Sctp, 80))
            .expect(Tcp, 81, "* -> x/a"),
        Case::new("not allow access by TCP when a policy specifies only UDP")
            .put(a_at(Udp, 81))
            .expect(Tcp, 81, "* -> x/a"),
    ];
    others.into_iter().chain(over(Udp)).chain(over(Sctp)).collect()
}

fn over(protocol: Protocol) -> Vec<Case> {
    let case = |name: &str| Case::new(format!("{protocol}: {name}"));
    let at_81 =
        PolicyRule::from([PolicyPeer::namespaces(ns("y"))]).at([PolicyPort::number(protocol, 81)]);
    vec![
        case("support a 'default-deny-ingress' policy")
            .put(x(all()).ingress([]))
            .expect(protocol, 80, "* -> X"),
        case("enforce policy based on Ports").put(x(pod("a")).ingress([at_81])).expect(
            protocol,
            81,
            "X,Z -> x/a",
        ),
        case("enforce policy to allow traffic only from a pod in a different namespace")
            .put(a_from([PolicyPeer::both(ns("y"), pod("a"))]))
            .expect(protocol, 80, "* -> x/a but y/a"),
    ]
}
