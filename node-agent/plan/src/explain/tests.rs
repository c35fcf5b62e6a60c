//! An explanation for every situation: its verdict, and the words that an operator will look for.

mod names;
mod owners;
mod redirects;
mod virtual_servers;

use super::{Explanation, FirstPacket, PacketVerdict, explain};
use crate::fixture::*;
use crate::{Detector, Planner, Policy, Settings};
use denizen_fixture::*;
use denizen_model::{Event, Listing, Protocol, Service, SessionAffinity, Slice, TrafficPolicy};

const HERE_1: &str = "10.1.2.3";
const AWAY_1: &str = "10.9.9.9";

fn service_event(service: Service) -> Event {
    Event::Service(service.name.clone(), Some(service))
}

fn slice_event(slice: Slice) -> Event {
    Event::Slice(slice.name.clone(), Some(slice))
}

/// A service of each kind, on a node with a bridged pod that serves some of them.
fn world() -> Vec<Event> {
    let (here, away) = (|| endpoint(HERE_1, Some(HERE)), || endpoint(AWAY_1, Some(AWAY)));
    let node_port = |number| vec![service_port("http", Protocol::Tcp, 80, Some(number))];
    let web = Service {
        ports: node_port(30080),
        external_ips: vec![ip("203.0.113.7")],
        load_balancer_ips: vec![ip("198.51.100.9")],
        source_ranges: vec![range("192.0.2.0/24")].into(),
        ..service("web", &["10.96.0.10"])
    };
    let local = |name, at: &str, number| Service {
        ports: node_port(number),
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Local,
        ..service(name, &[at])
    };
    let sticky = Service {
        affinity: SessionAffinity::ClientIp { seconds: 300 },
        ..service("sticky", &["10.96.0.13"])
    };
    let mut events = vec![
        service_event(web),
        slice_event(slice("web", "web", vec![here(), away()])),
        service_event(local("kept", "10.96.0.11", 30081)),
        slice_event(slice("kept", "kept", vec![here(), away()])),
        service_event(local("away", "10.96.0.12", 30082)),
        slice_event(slice("away", "away", vec![away()])),
        service_event(sticky),
        slice_event(slice("sticky", "sticky", vec![here()])),
        service_event(service("lonely", &["10.96.0.99"])),
        Event::Node(Some(node(None, &["192.168.0.2"], &["10.1.2.0/24"]))),
        Event::ServiceCidr("one".into(), Some(vec![range("10.96.0.0/24")])),
        Event::Addresses(vec![address("10.1.2.1", "cni0"), address("192.168.0.2", "eth0")]),
        Event::Pods(pods(1, &[(HERE_1, "cni0")])),
    ];
    events.extend(Listing::SERVICES.map(Event::Listed));
    events
}

fn planner(detector: Detector, masquerade_all: bool) -> Planner {
    let settings = Settings { masquerade_all, ..settings() };
    let mut planner = Planner::new(Policy { settings, detector, ..policy() }, CAPABLE);
    planner.apply(world());
    planner.update();
    planner
}

fn explained(planner: &Planner, packet: &FirstPacket) -> Explanation {
    explain(planner, packet, |_| Vec::new(), &|_| None).unwrap()
}

#[test]
fn without_services_an_address_is_left_to_whoever_serves_it() {
    let mut planner = Planner::new(Policy { services: false, ..policy() }, CAPABLE);
    planner.apply(vec![
        Event::Listed(Listing::Node),
        Event::Listed(Listing::Addresses),
        Event::Pods(pods(1, &[(HERE_1, "cni0")])),
    ]);
    planner.update();
    let words: &[&str] = &["10.1.2.3 is pod default/pod-0", "services are not decided here"];
    check(
        &planner,
        &[
            case("10.1.2.3", "10.96.0.10:80", PacketVerdict::Untouched, false, words),
            case("10.1.2.3", "127.0.0.1:80", PacketVerdict::Untouched, false, words),
        ],
    );
}

/// Services have ports only: of an address, pings meet what applies to every packet.
#[test]
fn pings_are_for_no_service() {
    use PacketVerdict::{Drop, Reject, Untouched};
    let no_port: &[&str] = &["10.9.9.9/icmp is left alone", "services have ports"];
    let refused: &[&str] = &["10.96.0.10/icmp is refused", "services have ports"];
    let node: &[&str] = &["192.168.0.2/icmp is left alone", "services have ports"];
    let cases = [
        case(HERE_1, "10.9.9.9/icmp", Untouched, false, no_port),
        case("8.8.8.8", "192.168.0.2/icmp", Untouched, false, node),
        case(HERE_1, "10.96.0.10/icmp", Reject, false, refused),
        case(HERE_1, "10.96.0.77/icmp", Drop, false, &["it lies in 10.96.0.0/24"]),
        case("8.8.8.8@eth0", "127.0.0.1/icmp", Drop, false, &["CVE-2020-8558"]),
    ];
    check(&planner(Detector::PodState, false), &cases);
}

struct ExplainCase {
    from: &'static str,
    to: &'static str,
    verdict: PacketVerdict,
    masquerade: bool,
    /// Words that must be in it, in this order.
    words: &'static [&'static str],
}

fn check(planner: &Planner, cases: &[ExplainCase]) {
    for ExplainCase { from, to, verdict, masquerade, words } in cases {
        let explanation = explained(planner, &FirstPacket::parse(from, to).unwrap());
        let text = explanation.to_string();
        assert_eq!(
            (explanation.verdict, explanation.masquerade),
            (*verdict, *masquerade),
            "{from} to {to}:\n{text}"
        );
        let mut rest = &*text;
        for word in *words {
            let (_, behind) = rest
                .split_once(word)
                .unwrap_or_else(|| panic!("{from} to {to}: no {word:?} in\n{text}"));
            rest = behind;
        }
    }
}

const fn case(
    from: &'static str,
    to: &'static str,
    verdict: PacketVerdict,
    masquerade: bool,
    words: &'static [&'static str],
) -> ExplainCase {
    ExplainCase { from, to, verdict, masquerade, words }
}

#[test]
fn each_situation_has_its_words() {
    use PacketVerdict::{Drop, Forward, Reject, Untouched};
    let cases = [
        case(
            "10.1.2.3",
            "10.96.0.10:80",
            Forward,
            false,
            &[
                "10.1.2.3 is pod default/pod-0",
                "come in through cni0",
                "is a cluster IP of default/web:http",
                "internalTrafficPolicy Cluster: any endpoint",
                "one of 2 endpoints, 1 in 2 each: 10.1.2.3:8080 (on this node)",
                "source stays",
                "if the chosen endpoint is the sender itself",
            ],
        ),
        case(
            "10.1.2.3@veth9",
            "10.96.0.10:80",
            Forward,
            true,
            &["coming in through veth9, is not a pod", "the source becomes"],
        ),
        case(
            "8.8.8.8",
            "10.96.0.10:80",
            Forward,
            true,
            &["8.8.8.8 is not a pod of this node", "take another way back"],
        ),
        case("192.168.0.2", "10.96.0.10:80", Forward, true, &["192.168.0.2 is this node itself"]),
        case(
            "8.8.8.8",
            "192.168.0.2:30080",
            Forward,
            true,
            &["is a node port of", "externalTrafficPolicy Cluster"],
        ),
        case("8.8.8.8", "203.0.113.7:80", Forward, true, &["is an external IP of"]),
        case(
            "192.0.2.7",
            "198.51.100.9:80",
            Forward,
            true,
            &["load balancer IP", "192.0.2.7 may use it: it lies in 192.0.2.0/24"],
        ),
        case("10.1.2.3", "198.51.100.9:80", Drop, false, &["loadBalancerSourceRanges"]),
        case(
            "8.8.8.8",
            "192.168.0.2:30081",
            Forward,
            false,
            &["endpoints on this node only", "the only endpoint", "the endpoint is on this node"],
        ),
        case(
            "10.1.2.3",
            "192.168.0.2:30081",
            Forward,
            false,
            &["any endpoint", "this node and its pods may use every endpoint"],
        ),
        case("192.168.0.2", "192.168.0.2:30081", Forward, true, &["any endpoint"]),
        case(
            "8.8.8.8",
            "192.168.0.2:30082",
            Drop,
            false,
            &["dropped without an answer", "none on this node"],
        ),
        case(
            "10.1.2.3",
            "192.168.0.2:30082",
            Forward,
            false,
            &["10.9.9.9:8080, the only endpoint"],
        ),
        case(
            "10.1.2.3",
            "10.96.0.12:80",
            Drop,
            false,
            &["internalTrafficPolicy Local: endpoints on this node only"],
        ),
        case(
            "10.1.2.3",
            "10.96.0.13:80",
            Forward,
            true,
            &["300", "sessionAffinity ClientIP", "if the chosen endpoint is the sender itself"],
        ),
        case(
            "10.1.2.3",
            "10.96.0.99:80",
            Reject,
            false,
            &["refused", "the service has no usable endpoint"],
        ),
        case("10.1.2.3", "10.96.0.10:81", Reject, false, &["refused", "no service has this port"]),
        case("10.1.2.3", "10.96.0.10:80/udp", Reject, false, &["10.96.0.10:80/udp"]),
        case("10.1.2.3", "10.96.0.200:80", Drop, false, &["it lies in 10.96.0.0/24"]),
        case(
            "10.1.2.3",
            "1.1.1.1:80",
            Untouched,
            false,
            &["left alone", "denizen touches services' traffic only"],
        ),
        case("10.1.2.3", "10.1.2.1:30080", Untouched, false, &["left alone"]),
    ];
    check(&planner(Detector::PodState, false), &cases);
}

#[test]
fn other_detectors_say_what_they_go_by() {
    use PacketVerdict::Forward;
    let bridge = [
        case(
            "8.8.8.8@cni0",
            "10.96.0.10:80",
            Forward,
            false,
            &["counts as a pod", "comes in through cni0"],
        ),
        case("10.1.2.3", "10.96.0.10:80", Forward, false, &["comes in through cni0"]),
        case(
            "8.8.8.8@eth0",
            "10.96.0.10:80",
            Forward,
            true,
            &["not come in through one of the bridges"],
        ),
    ];
    check(&planner(Detector::Bridge(vec!["cni0".into()]), false), &bridge);
    let prefix = [
        case("8.8.8.8@veth7", "10.96.0.10:80", Forward, false, &["veth7", "begin with veth"]),
        case("8.8.8.8@eth0", "10.96.0.10:80", Forward, true, &["begins with none of the prefixes"]),
    ];
    check(&planner(Detector::InterfacePrefix(vec!["veth".into()]), false), &prefix);
    let ranges = [
        case("10.1.2.77", "10.96.0.10:80", Forward, false, &["the source lies in 10.1.2.0/24"]),
        case("8.8.8.8", "10.96.0.10:80", Forward, true, &["none of this node's pod CIDRs"]),
        case(
            "10.1.2.1",
            "10.96.0.10:80",
            Forward,
            false,
            &["this node itself", "counts as a pod's"],
        ),
        case("192.168.0.2", "10.96.0.10:80", Forward, true, &["this node itself"]),
    ];
    check(&planner(Detector::NodeCidr(None), false), &ranges);
}

#[test]
fn masquerade_all_is_about_cluster_ips() {
    use PacketVerdict::Forward;
    let cases = [
        case("10.1.2.3", "10.96.0.10:80", Forward, true, &["--masquerade-all"]),
        case("10.1.2.3", "192.168.0.2:30081", Forward, false, &["source stays"]),
    ];
    check(&planner(Detector::PodState, true), &cases);
}
