//! What is in the way of `--routing-mode`. Only reads.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;

use denizen_route::Routes;

use super::networkd::removes_routes;
use super::{Finding, Subject};
use denizen_route::PROTOCOL;
use denizen_routing::RoutingSettings;
use denizen_routing::bird::{BGP_PORT, FOLDER, SOCKET};
use denizen_text::describe;

pub(super) fn announcing(subject: &Subject) -> Vec<Finding> {
    if subject.routing == RoutingSettings::Off {
        return vec![Finding::skipped("nothing is routed or announced: see --routing-mode")];
    }
    let announced = subject.routing.announced();
    let rules = announced.and_then(|config| rules(config.table));
    let speaker = announced.and_then(|config| config.bird.as_ref()).and_then(|_| speaker(subject));
    let found: Vec<Finding> = [rules, speaker, removes_routes()].into_iter().flatten().collect();
    match found.is_empty() {
        true => vec![Finding::ok("nothing that is seen here is in the way of --routing-mode")],
        false => found,
    }
}

/// A rule that leads to the table of announcements.
fn rules(table: u32) -> Option<Finding> {
    let rules = Routes::open(PROTOCOL).and_then(|mut routes| routes.rules());
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) => {
            return Some(
                Finding::warning(describe(&error), "run it as root")
                    .coded("rules-unreadable", [("error", describe(&error))]),
            );
        }
    };
    let rule = rules.iter().find(|rule| rule.table == table)?;
    Some(
        Finding::failure(
            format!("routing rule {} (`ip rule`) leads to table {table}", rule.priority),
            "remove the rule, or use another --announce-table",
        )
        .coded(
            "announce-table-ruled",
            [("priority", rule.priority.to_string()), ("table", table.to_string())],
        ),
    )
}

/// Another program that listens at BGP's port, which the agent's BIRD needs.
fn speaker(subject: &Subject) -> Option<Finding> {
    let is_ours = UnixStream::connect(subject.run_dir.join(FOLDER).join(SOCKET)).is_ok();
    let is_taken = !is_ours && ["tcp", "tcp6"].into_iter().any(has_listener);
    is_taken.then(|| {
        Finding::failure(
            format!("another program listens at port {BGP_PORT}, so BIRD cannot"),
            "stop it: it may be kube-router, Calico, MetalLB, FRR or another BIRD",
        )
        .coded("bgp-port-taken", [("port", BGP_PORT.to_string())])
    })
}

/// Whether any program listens at BGP's port, by the kernel's list of sockets. To bind the port
/// would need a capability that the agent's container does not have.
fn has_listener(protocol: &str) -> bool {
    let Ok(file) = File::open(format!("/proc/self/net/{protocol}")) else { return false };
    BufReader::new(file).lines().map_while(Result::ok).any(|line| is_listener(&line))
}

/// `NUMBER: ADDRESS:PORT ADDRESS:PORT STATE …`, in hexadecimal digits (proc(5)).
fn is_listener(line: &str) -> bool {
    const LISTENING: &str = "0A";
    let mut words = line.split_whitespace();
    let port = words.nth(1).and_then(|local| local.rsplit_once(':'));
    let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
    port == Some(BGP_PORT) && words.nth(1) == Some(LISTENING)
}
