//! What is in the way of `--routing-mode`. Only reads, and listens for an instant where BIRD
//! will.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;

use denizen_route::Routes;

use super::networkd::removes_routes;
use super::{Finding, Subject};
use crate::bird::{BGP_PORT, FOLDER, SOCKET};
use crate::config::Routing;
use crate::describe::describe;
use crate::routes::PROTOCOL;

pub(super) fn announcing(subject: &Subject) -> Vec<Finding> {
    if subject.routing == Routing::Off {
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
        Err(error) => return Some(Finding::warning(describe(&error), "run it as root")),
    };
    let rule = rules.iter().find(|rule| rule.table == table)?;
    Some(Finding::failure(
        format!("routing rule {} (`ip rule`) leads to table {table}", rule.priority),
        "remove the rule, or use another --announce-table",
    ))
}

/// Another program that listens where the agent's BIRD will.
fn speaker(subject: &Subject) -> Option<Finding> {
    let is_ours = UnixStream::connect(subject.run_dir.join(FOLDER).join(SOCKET)).is_ok();
    let error = TcpListener::bind((Ipv4Addr::UNSPECIFIED, BGP_PORT)).err()?;
    let is_taken = error.kind() == ErrorKind::AddrInUse && !is_ours;
    is_taken.then(|| {
        Finding::failure(
            format!("another program listens at port {BGP_PORT}, so BIRD cannot"),
            "stop it: it may be kube-router, Calico, MetalLB, FRR or another BIRD",
        )
    })
}
