//! Policies that add up, and the two directions, which do not know of each other.

use denizen_tests::packets::probe::Protocol::{Tcp, Udp};
use denizen_tests::policy::{PolicyPort, PolicyRule};

use super::{all, named, pod, x};
use crate::case::Case;

pub fn cases() -> Vec<Case> {
    let at_80 = || [PolicyRule::all().at([PolicyPort::number(Tcp, 80)])];
    vec![
        Case::new("enforce ingress policy allowing any port traffic to a server on a protocol")
            .put(x(pod("a")).ingress([PolicyRule::all().at([PolicyPort::every(Tcp)])]))
            .expect(Tcp, 80, "none")
            .expect(Udp, 80, "* -> x/a"),
        Case::new(
            "enforce multiple ingress policies with ingress allow-all policy taking precedence",
        )
        .put(named("x", "allow-80", all()).ingress(at_80()))
        .expect(Tcp, 81, "* -> X")
        .put(named("x", "allow-all", all()).ingress([PolicyRule::all()]))
        .expect(Tcp, 81, "none"),
        Case::new(
            "enforce multiple egress policies with egress allow-all policy taking precedence",
        )
        .put(named("x", "allow-80", all()).egress(at_80()))
        .expect(Tcp, 81, "X -> *")
        .put(named("x", "allow-all", all()).egress([PolicyRule::all()]))
        .expect(Tcp, 81, "none"),
        Case::new("enforce policies to check ingress and egress policies can be controlled independently based on PodSelector")
            .put(named("x", "egress", pod("a")).egress([PolicyRule::all()]))
            .expect(Tcp, 80, "none")
            .put(named("x", "ingress", pod("a")).ingress([]))
            .expect(Tcp, 80, "* -> x/a"),
    ]
}
