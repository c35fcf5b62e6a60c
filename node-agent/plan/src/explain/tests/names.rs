//! Pods and services by name.

use super::*;
use crate::explain::PacketError;

fn resolved(from: &str, to: &str) -> Result<(String, String), PacketError> {
    let planner = planner(Detector::PodState, false);
    let packet = FirstPacket::resolve(planner.plan(), from, to)?;
    Ok((packet.source_text(), packet.destination_text()))
}

#[test]
fn names_mean_the_addresses_of_pods_and_services() {
    let cases = [
        ("default/pod-0", "default/web:http", HERE_1, "10.96.0.10:80/tcp"),
        ("default/pod-0", "default/web", HERE_1, "10.96.0.10:80/tcp"),
        ("default/pod-0@cni0", "default/web:80/tcp", "10.1.2.3@cni0", "10.96.0.10:80/tcp"),
        ("8.8.8.8", "default/web:http", "8.8.8.8", "10.96.0.10:80/tcp"),
        ("default/pod-0", "10.96.0.10:53/udp", HERE_1, "10.96.0.10:53/udp"),
        ("8.8.8.8", "default/pod-0:8080/udp", "8.8.8.8", "10.1.2.3:8080/udp"),
        ("8.8.8.8", "10.96.0.10:80", "8.8.8.8", "10.96.0.10:80/tcp"),
        ("8.8.8.8", "default/pod-0/icmp", "8.8.8.8", "10.1.2.3/icmp"),
        ("default/pod-0", "default/web/icmp", HERE_1, "10.96.0.10/icmp"),
        ("default/pod-0", "10.9.9.9/icmp", HERE_1, "10.9.9.9/icmp"),
    ];
    for (from, to, source, destination) in cases {
        assert_eq!(
            resolved(from, to),
            Ok((source.to_owned(), destination.to_owned())),
            "{from} {to}"
        );
    }
}

#[test]
fn names_of_nothing_are_errors() {
    let none = |to: &str| PacketError::NoDestination(to.to_owned());
    let cases = [
        ("default/nobody", "default/web:http", PacketError::NoPod("default/nobody".to_owned())),
        ("default/pod-0", "default/nothing:http", none("default/nothing:http")),
        ("default/pod-0", "default/web:81", none("default/web:81")),
        ("default/pod-0", "default/web:http/udp", none("default/web:http/udp")),
        ("default/pod-0", "default/pod-0", none("default/pod-0")),
        ("8.8.8.8", "default/pod-0/icmpv6", none("default/pod-0/icmpv6")),
        ("8.8.8.8", "default/pod-0:80/icmp", none("default/pod-0:80/icmp")),
        ("8.8.8.8", "default/nothing/icmp", none("default/nothing/icmp")),
        ("10.0.0.0/8", "default/web:http", PacketError::From("10.0.0.0/8".to_owned())),
        (
            "default/pod-0",
            "[fd00::1]:80",
            PacketError::Families(HERE_1.parse().unwrap(), "fd00::1".parse().unwrap()),
        ),
    ];
    for (from, to, error) in cases {
        assert_eq!(resolved(from, to), Err(error), "{from} {to}");
    }
    let planner = {
        let mut planner = planner(Detector::PodState, false);
        let mut two = service("web", &["10.96.0.10"]);
        two.ports = vec![
            service_port("http", Protocol::Tcp, 80, None),
            service_port("admin", Protocol::Tcp, 81, None),
        ];
        planner.apply(vec![service_event(two)]);
        planner.update();
        planner
    };
    let error = FirstPacket::resolve(planner.plan(), "default/pod-0", "default/web").unwrap_err();
    assert!(error.to_string().contains("default/web:admin/tcp, default/web:http/tcp"), "{error}");
}

/// Of two endpoints, the sender itself sees the node's address.
#[test]
fn endpoints_that_alone_see_the_node_are_named() {
    let planner = planner(Detector::PodState, false);
    let packet = FirstPacket::parse(HERE_1, "10.96.0.10:80").unwrap();
    let explanation = explained(&planner, &packet);
    assert_eq!(
        (explanation.masquerade, explanation.masqueraded),
        (false, vec![format!("{HERE_1}:8080")])
    );
}
