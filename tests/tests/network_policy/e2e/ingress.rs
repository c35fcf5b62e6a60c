//! Who may send to a pod.

use denizen_tests::packets::probe::Protocol::Tcp;
use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyPort, PolicyRule};

use super::{a_from, all, named, ns, one, pod, x};
use crate::case::Case;

pub fn cases() -> Vec<Case> {
    [by_selector(), by_both(), by_port()].into_iter().flatten().collect()
}

fn by_selector() -> Vec<Case> {
    let deny_all = x(all()).ingress([]);
    let any_pod = || PolicyPeer::both(all(), all());
    vec![
        one("support a 'default-deny-ingress' policy", deny_all.clone(), "* -> X"),
        one("support a 'default-deny-all' policy", deny_all.egress([]), "* -> X; X -> *"),
        one(
            "enforce policy to allow traffic from pods within server namespace based on PodSelector",
            a_from([PolicyPeer::pods(pod("b"))]),
            "* -> x/a but x/b",
        ),
        Case::new("enforce policy to allow ingress traffic for a target")
            .put(named("x", "deny-all", all()).ingress([]))
            .put(a_from([any_pod()]))
            .expect(Tcp, 80, "* -> x/b,x/c"),
        one(
            "enforce policy to allow ingress traffic from pods in all namespaces",
            a_from([PolicyPeer::namespaces(all())]),
            "none",
        ),
        one(
            "enforce policy to allow traffic only from a different namespace, based on NamespaceSelector",
            a_from([PolicyPeer::namespaces(ns("y"))]),
            "X,Z -> x/a",
        ),
        one(
            "enforce policy based on PodSelector with MatchExpressions",
            a_from([PolicyPeer::pods(LabelSelector::requires("pod", "In", &["b"]))]),
            "* -> x/a but x/b",
        ),
        one(
            "enforce policy based on NamespaceSelector with MatchExpressions",
            a_from([PolicyPeer::namespaces(LabelSelector::requires("ns", "In", &["y"]))]),
            "X,Z -> x/a",
        ),
        one(
            "enforce policy based on any PodSelectors",
            a_from([PolicyPeer::pods(pod("b")), PolicyPeer::pods(pod("c"))]),
            "* -> x/a but x/b,x/c",
        ),
        one(
            "enforce policies to check ingress of all pods of other namespaces being denied",
            x(all()).ingress([PolicyRule::from([PolicyPeer::pods(all())])]),
            "Y,Z -> X",
        ),
        one(
            "allow ingress access from namespace on default namespace label",
            a_from([PolicyPeer::namespaces(LabelSelector::label(
                "kubernetes.io/metadata.name",
                "y",
            ))]),
            "X,Z -> x/a",
        ),
    ]
}

fn by_both() -> Vec<Case> {
    let not_x = || LabelSelector::requires("ns", "NotIn", &["x"]);
    vec![
        one(
            "enforce policy based on PodSelector or NamespaceSelector",
            a_from([PolicyPeer::namespaces(not_x()), PolicyPeer::pods(pod("b"))]),
            "x/a,x/c -> x/a",
        ),
        one(
            "enforce policy based on PodSelector and NamespaceSelector",
            a_from([PolicyPeer::both(not_x(), pod("b"))]),
            "* -> x/a but y/b,z/b",
        ),
        one(
            "enforce policy based on Multiple PodSelectors and NamespaceSelectors",
            a_from([PolicyPeer::both(not_x(), LabelSelector::requires("pod", "In", &["b", "c"]))]),
            "X,y/a,z/a -> x/a",
        ),
        one(
            "enforce policy to allow traffic only from a pod in a different namespace",
            a_from([PolicyPeer::both(ns("y"), pod("a"))]),
            "* -> x/a but y/a",
        ),
    ]
}

fn by_port() -> Vec<Case> {
    let from_y = |name: &str, port| {
        let rule = PolicyRule::from([PolicyPeer::namespaces(ns("y"))]).at([port]);
        named("x", name, pod("a")).ingress([rule])
    };
    let tcp = |port| PolicyPort::number(Tcp, port);
    vec![
        Case::new("enforce policy based on Ports").put(from_y("81", tcp(81))).expect(
            Tcp,
            81,
            "X,Z -> x/a",
        ),
        Case::new("enforce multiple, stacked policies with overlapping podSelectors")
            .put(from_y("81", tcp(81)))
            .expect(Tcp, 80, "* -> x/a")
            .expect(Tcp, 81, "X,Z -> x/a")
            .put(from_y("80", tcp(80)))
            .expect(Tcp, 80, "X,Z -> x/a")
            .expect(Tcp, 81, "X,Z -> x/a"),
        Case::new("support allow-all policy")
            .put(x(all()).ingress([PolicyRule::all()]))
            .expect(Tcp, 80, "none")
            .expect(Tcp, 81, "none"),
        Case::new("allow ingress access on one named port")
            .put(x(all()).ingress([PolicyRule::all().at([PolicyPort::named(Tcp, "serve-81-tcp")])]))
            .expect(Tcp, 80, "* -> X")
            .expect(Tcp, 81, "none"),
        Case::new("allow ingress access from namespace on one named port")
            .put(from_y("named", PolicyPort::named(Tcp, "serve-80-tcp")))
            .expect(Tcp, 80, "X,Z -> x/a")
            .expect(Tcp, 81, "* -> x/a"),
    ]
}
