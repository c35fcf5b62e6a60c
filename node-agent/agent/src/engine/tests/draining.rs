//! Since when endpoints drain.

use std::collections::BTreeSet;

use super::{Refusing, refusing};
use crate::engine::Engine;
use denizen_backend::Draining;
use denizen_fixture::{ip, port};
use denizen_model::Protocol;
use denizen_observe::status::DrainingSince;
use denizen_plan::{FrontendAddress, FrontendKey};

fn draining(last: u16) -> Draining {
    let address = FrontendAddress::Ip(ip("10.96.0.10"));
    let frontend = FrontendKey { address, protocol: Protocol::Tcp, port: port(80) };
    Draining { frontend, endpoint: (ip("10.1.2.3"), last).into() }
}

/// These drain, and the agent looks at this time.
fn look(engine: &mut Engine<Refusing>, ports: &[u16], at: &str) -> Vec<(u16, Option<String>)> {
    engine.report.draining = ports.iter().map(|port| draining(*port)).collect::<BTreeSet<_>>();
    engine.note_draining(at);
    let noted = engine.draining.iter();
    noted.map(|(it, DrainingSince(since))| (it.endpoint.port(), since.clone())).collect()
}

#[test]
fn an_endpoint_drains_since_it_was_first_seen_to() {
    let mut engine = refusing();
    // As if it had been found at the start.
    engine.draining.insert(draining(1), DrainingSince::default());
    let at = |port, at: &str| (port, Some(at.to_owned()));
    assert_eq!(look(&mut engine, &[1, 2], "a"), [(1, None), at(2, "a")]);
    assert_eq!(look(&mut engine, &[1, 2, 3], "b"), [(1, None), at(2, "a"), at(3, "b")]);
    assert_eq!(look(&mut engine, &[3], "c"), [at(3, "b")]);
    assert_eq!(look(&mut engine, &[1, 3], "d"), [at(1, "d"), at(3, "b")], "it was back");
}
