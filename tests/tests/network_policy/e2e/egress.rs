//! To whom a pod may send.

use std::net::IpAddr;

use denizen_tests::packets::probe::Protocol::Tcp;
use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyPort, PolicyRule, PolicyWorld};

use super::{a_from, a_to, all, named, ns, one, pod, x};
use crate::case::Case;

pub fn cases(world: &PolicyWorld) -> Vec<Case> {
    by_selector().into_iter().chain(by_block(world)).collect()
}

fn by_selector() -> Vec<Case> {
    let y_a = || PolicyPeer::both(ns("y"), pod("a"));
    let of_y = |name: &str, pods| {
        let rule = PolicyRule::from([PolicyPeer::both(ns("x"), pod("a"))]);
        named("y", name, pods).ingress([rule])
    };
    vec![
        one("deny egress from pods based on PodSelector", x(pod("a")).egress([]), "x/a -> *"),
        one("deny egress from all pods in a namespace", x(all()).egress([]), "X -> *"),
        Case::new("enforce except clause while egress access to server is denied on client side")
            .put(a_to([y_a()]))
            .put(of_y("a", pod("a")))
            .put(of_y("b", pod("b")))
            .expect(Tcp, 80, "x/a -> * but y/a; * -> y/a but x/a; * -> y/b"),
        one(
            "enforce egress policy allowing traffic to a server in a different namespace",
            a_to([y_a()]),
            "x/a -> * but y/a",
        ),
        Case::new("allow egress access on one named port")
            .put(x(all()).egress([PolicyRule::all().at([PolicyPort::named(Tcp, "serve-80-tcp")])]))
            .expect(Tcp, 80, "none")
            .expect(Tcp, 81, "X -> *"),
        Case::new("work with Ingress, Egress specified together")
            .put(
                a_from([PolicyPeer::pods(pod("b"))])
                    .egress([PolicyRule::all().at([PolicyPort::number(Tcp, 80)])]),
            )
            .expect(Tcp, 80, "* -> x/a but x/b")
            .expect(Tcp, 81, "* -> x/a but x/b; x/a -> *"),
        one(
            "deny egress to a namespace on default namespace label",
            a_to([PolicyPeer::namespaces(LabelSelector::requires(
                "kubernetes.io/metadata.name",
                "NotIn",
                &["y"],
            ))]),
            "x/a -> Y",
        ),
    ]
}

/// Every block is there once for each family.
fn by_block(world: &PolicyWorld) -> Vec<Case> {
    let addresses = |namespace: &str, name: &str| -> Vec<IpAddr> {
        let pod = world.pod(namespace, name).expect("one of the nine");
        pod.status.pod_ips.iter().map(|pod_ip| pod_ip.ip).collect()
    };
    let alone =
        |address: &IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let only = |namespace: &str| {
        a_to(addresses(namespace, "b").iter().map(|ip| PolicyPeer::block(alone(ip), [])))
    };
    let but_b = a_to(
        addresses("x", "b").iter().map(|ip| PolicyPeer::block(format!("{ip}/4"), [alone(ip)])),
    );
    vec![
        one("allow egress access to server in CIDR block", only("y"), "x/a -> * but y/b"),
        one(
            "enforce except clause while egress access to server in CIDR block",
            but_b.clone(),
            "x/a -> x/b",
        ),
        Case::new("ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed")
            .put(but_b)
            .expect(Tcp, 80, "x/a -> x/b")
            .put(only("x"))
            .expect(Tcp, 80, "x/a -> * but x/b"),
    ]
}
