//! Policies, pods and namespaces that change.

use denizen_tests::packets::probe::Protocol::Tcp;
use denizen_tests::policy::{LabelSelector, PolicyPeer, PolicyRule};

use super::{a_from, all, x};
use crate::case::{Case, Change, labels};

pub fn cases() -> Vec<Case> {
    let updated_pod = LabelSelector {
        match_labels: labels(&[("pod", "b"), ("pod2", "updated")]),
        ..LabelSelector::default()
    };
    let label_pod = |pod: &str, pairs: &[(&str, &str)]| Change::LabelPod {
        namespace: "x".to_owned(),
        pod: pod.to_owned(),
        labels: labels(pairs),
    };
    vec![
        Case::new("allow ingress access from updated policy")
            .put(x(all()).ingress([PolicyRule::all()]))
            .expect(Tcp, 81, "none")
            .put(x(all()).ingress([]))
            .expect(Tcp, 81, "* -> X"),
        Case::new("allow ingress access from updated namespace")
            .put(a_from([PolicyPeer::namespaces(LabelSelector::label("ns2", "updated"))]))
            .expect(Tcp, 80, "* -> x/a")
            .then(Change::LabelNamespace {
                namespace: "y".to_owned(),
                labels: labels(&[("ns", "y"), ("ns2", "updated")]),
            })
            .expect(Tcp, 80, "* -> x/a but Y"),
        Case::new("allow ingress access from updated pod")
            .put(a_from([PolicyPeer::pods(updated_pod)]))
            .expect(Tcp, 80, "* -> x/a")
            .then(label_pod("b", &[("pod", "b"), ("pod2", "updated")]))
            .expect(Tcp, 80, "* -> x/a but x/b"),
        Case::new("deny ingress access to updated pod")
            .put(x(LabelSelector::label("target", "isolated")).ingress([]))
            .expect(Tcp, 80, "none")
            .then(label_pod("a", &[("pod", "a"), ("target", "isolated")]))
            .expect(Tcp, 80, "* -> x/a"),
        Case::new("stop enforcing policies after they are deleted")
            .put(x(all()).ingress([]).egress([]))
            .expect(Tcp, 80, "* -> X; X -> *")
            .then(Change::Delete { namespace: "x".to_owned(), policy: "policy".to_owned() })
            .expect(Tcp, 80, "none"),
    ]
}
