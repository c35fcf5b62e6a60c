//! What this node drops at addresses that it announces.

use super::*;

/// The address is announced for one Service, and packets of another one come here too.
#[test]
fn what_an_announced_address_drops_is_known() {
    let mail = Service {
        ports: vec![service_port("http", denizen_model::Protocol::Tcp, 25, None)],
        load_balancer_ips: vec![ip(VIP)],
        external_policy: TrafficPolicy::Local,
        ..service("mail", &["10.96.0.11"])
    };
    let dropped = |first: Service, other: &Service, of_other: Vec<SliceEndpoint>| {
        let slices = vec![slice("web", "web", vec![here()]), slice("mail", "mail", of_other)];
        let decided =
            AnnounceWorld { services: vec![first, other.clone()], slices, ..world() }.decide();
        let all = decided.dropped.values().flatten();
        all.map(|frontend| format!("{} of {}", frontend.key, frontend.service)).collect::<Vec<_>>()
    };
    let nothing: [&str; 0] = [];
    let mails = ["203.0.113.7:25/tcp of default/mail"];
    assert_eq!(dropped(local(), &mail, vec![away()]), mails);
    assert_eq!(dropped(web(), &mail, vec![away()]), mails, "policy Cluster announces it too");
    assert_eq!(dropped(local(), &mail, vec![here()]), nothing, "served");
    assert_eq!(dropped(local(), &mail, vec![]), nothing, "refused: nobody has an endpoint");
    let leaving = vec![draining("10.1.1.6", Some(HERE)), away()];
    assert_eq!(dropped(local(), &mail, leaving), nothing, "rules still serve");
    let cluster = Service { external_policy: TrafficPolicy::Cluster, ..mail.clone() };
    assert_eq!(dropped(local(), &cluster, vec![away()]), nothing, "any node serves it");
    let silent = Service { opts_out: true, ..mail.clone() };
    assert_eq!(dropped(local(), &silent, vec![away()]), mails, "packets come all the same");
    let alone = Service { opts_out: true, ..local() };
    assert_eq!(dropped(alone, &mail, vec![away()]), nothing, "the address is not announced");
    let own = [service_port("http", denizen_model::Protocol::Tcp, 80, None), mail.ports[0].clone()];
    let own = Service { ports: own.to_vec(), created: "2026-11-01".into(), ..local() };
    assert_eq!(dropped(own, &mail, vec![away()]), nothing, "the other one's port is taken");
}
