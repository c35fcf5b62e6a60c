//! The table of one version: host ports are data in two maps, the rules are always the same.

use std::net::{IpAddr, Ipv4Addr};

use crate::why::Why;
use denizen_model::Family;
use denizen_nft::{
    Assigned, BaseChain, Chain, ChainKind, DataType, Element, Field, Hook, Key, Rule, Schema, Set,
    SetId, Statement, Value, Variable, Verdict, endpoint,
};
use denizen_plan::{HostPortKey, HostPortPlace, MarkBit, ServedHostPort, TakenPort};

/// The name of the table, in `ip` and in `ip6`.
pub const TABLE: &str = "denizen-host-ports";

/// Behind everybody's `dstnat` (-100; Denizen's own rules for services are at -110). All NAT chains
/// of a hook run in the order of their priorities, iptables' too.
const DESTINATION_PRIORITY: i32 = -99;
/// `srcnat`.
const SOURCE_PRIORITY: i32 = 100;
/// `raw`: before connection tracking, which gives answers to loopback connections their loopback
/// destination back. Those answers must pass.
const RAW_PRIORITY: i32 = -300;

/// `IPS_DST_NAT`.
const TRANSLATED: u32 = 1 << 5;

const AT_ADDRESS: SetId = SetId(0);
const AT_ANY: SetId = SetId(1);
pub const ADDRESSES: SetId = SetId(2);
pub const TAKEN: SetId = SetId(3);
const HAIRPINS: SetId = SetId(4);

/// What the rules depend on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableRules {
    /// Host ports are served on 127.0.0.0/8.
    pub on_loopback: bool,
    /// Neighbours' packets to 127.0.0.0/8 are dropped, which `route_localnet` would let in.
    pub guard: bool,
    /// There are host ports.
    pub ports: bool,
    /// `--open-forward`: connections to pods are marked.
    pub open_forward: bool,
}

pub fn schema(version: Family) -> Schema {
    let all = [AT_ADDRESS, AT_ANY, ADDRESSES, TAKEN, HAIRPINS];
    Schema {
        family: version.into(),
        name: TABLE,
        comment: "Denizen: host ports of this node's pods",
        sets: all.map(|id| set(version, id)).into(),
    }
}

fn set(version: Family, id: SetId) -> Set {
    let (source, destination) = (Field::Source(version), Field::Destination(version));
    let port = [Field::Protocol, Field::DestinationPort];
    let at_address = vec![destination, port[0], port[1]];
    let to = || DataType::Fields(vec![destination, Field::DestinationPort]);
    let (name, comment, key, data) = match id {
        AT_ADDRESS => ("at-address", "host ports with a hostIP, and their pods", at_address, to()),
        AT_ANY => ("at-any", "host ports without a hostIP, and their pods", port.into(), to()),
        ADDRESSES => ("addresses", "the node's addresses", vec![destination], DataType::None),
        TAKEN => ("taken", "here a service has the port", at_address, DataType::None),
        HAIRPINS => ("hairpins", "pods with host ports", vec![source, destination], DataType::None),
        SetId(_) => unreachable!("the table has no other set"),
    };
    Set { id, name, comment, key, is_ranged: false, data, max_dynamic_elements: None }
}

/// Its chains, each before those that refer to it.
pub fn chains(version: Family, rules: TableRules) -> Vec<Chain> {
    let nat = |hook, priority| BaseChain { kind: ChainKind::Nat, hook, priority };
    let base = |name: &str, base, why: Why, rules| Chain {
        name: name.into(),
        base: Some(base),
        why: why.text(),
        rules,
    };
    let jump = || rule(Why::FindHostPort, [Statement::Verdict(Verdict::Jump("host-ports".into()))]);
    let found = Chain {
        name: "host-ports".into(),
        base: None,
        why: Why::FindHostPort.text(),
        rules: found(version),
    };
    let before = |hook| nat(hook, DESTINATION_PRIORITY);
    let arriving = base(
        "prerouting",
        before(Hook::Prerouting),
        Why::HostPorts,
        arriving_rules(version, jump(), rules.open_forward),
    );
    let mut sent = vec![jump()];
    let mut left = vec![hairpin(version)];
    if rules.on_loopback {
        sent.push(on_loopback(version));
        left.push(from_loopback());
    }
    let sending = base("output", before(Hook::Output), Why::Sending, sent);
    let leaving = nat(Hook::Postrouting, SOURCE_PRIORITY);
    let leaving = base("postrouting", leaving, Why::Leaving, left);
    let raw = BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: RAW_PRIORITY };
    let guard = rules.guard.then(|| base("martians", raw, Why::Martian, martians()));
    let ports = rules.ports.then_some([found, arriving, sending, leaving]);
    ports.into_iter().flatten().chain(guard).collect()
}

/// A host port on 127.0.0.0/8 is for the node alone.
fn arriving_rules(version: Family, jump: Rule, open_forward: bool) -> Vec<Rule> {
    let back = Statement::Verdict(Verdict::Return);
    let loopback = rule(Why::Martian, [of_loopback(Field::Destination), back]);
    let loopback = (version == Family::V4).then_some(loopback);
    // A packet that is translated leaves this hook at once, with the bit set.
    let admit = |why, assigned| {
        let here = Statement::In(set(version, ADDRESSES).lookup());
        let assign = Statement::Assign(Variable::ConnectionMark, assigned);
        open_forward.then(|| rule(why, [here, assign]))
    };
    let bit = MarkBit::ADMITTED.mask();
    let before = loopback.into_iter().chain(admit(Why::Admitted, Assigned::Or(bit)));
    before.chain([jump]).chain(admit(Why::NotAdmitted, Assigned::And(!bit))).collect()
}

/// Services' ports come first, then host ports with a hostIP.
fn found(version: Family) -> Vec<Rule> {
    let dnat = |id| Statement::Dnat(version, set(version, id).lookup());
    let is_in = |id| Statement::In(set(version, id).lookup());
    let back = Statement::Verdict(Verdict::Return);
    vec![
        rule(Why::HostPortTaken, [is_in(TAKEN), back]),
        rule(Why::HostPortAtAddress, [dnat(AT_ADDRESS)]),
        rule(Why::HostPortAtAny, [is_in(ADDRESSES), dnat(AT_ANY)]),
    ]
}

/// Only in the output chain: a packet that arrives for a loopback address was sent by this node
/// itself, and has passed the output chain.
fn on_loopback(version: Family) -> Rule {
    let free = Statement::NotIn(set(version, TAKEN).lookup());
    let to_pod = Statement::Dnat(version, set(version, AT_ANY).lookup());
    rule(Why::HostPortOnLoopback, [of_loopback(Field::Destination), free, to_pod])
}

fn hairpin(version: Family) -> Rule {
    let same = Statement::In(set(version, HAIRPINS).lookup());
    rule(Why::Hairpin, [translated(), same, Statement::Masquerade])
}

fn from_loopback() -> Rule {
    rule(Why::FromLoopback, [of_loopback(Field::Source), translated(), Statement::Masquerade])
}

fn martians() -> Vec<Rule> {
    let own = Statement::Equals(Field::InputInterface, Key::EMPTY.interface("lo"));
    let (back, drop) = (Statement::Verdict(Verdict::Return), Statement::Verdict(Verdict::Drop));
    let addressed = || of_loopback(Field::Destination);
    vec![
        rule(Why::Martian, [addressed(), own, back]),
        rule(Why::Martian, [addressed(), Statement::Counter, drop]),
    ]
}

fn of_loopback(field: fn(Family) -> Field) -> Statement {
    Statement::Within(field(Family::V4), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8)
}

fn translated() -> Statement {
    Statement::Bits { field: Field::ConnectionStatus, mask: TRANSLATED, equal: false, value: 0 }
}

fn rule(why: Why, statements: impl Into<Vec<Statement>>) -> Rule {
    Rule { statements: statements.into(), why: why.text() }
}

/// The address of the node, if it is of this version.
pub fn of_address(ip: IpAddr) -> Element {
    member(ADDRESSES, Key::EMPTY.address(ip))
}

/// A port that a service has.
pub fn of_taken(TakenPort { ip, protocol, port }: TakenPort) -> Element {
    member(TAKEN, Key::EMPTY.address(ip).byte(protocol.number()).port(port.get()))
}

/// A pod that may reach itself.
pub fn of_hairpin(ip: IpAddr) -> Element {
    member(HAIRPINS, Key::EMPTY.address(ip).address(ip))
}

/// A host port that is served.
pub fn of_host_port(key: HostPortKey, served: &ServedHostPort) -> Element {
    let HostPortKey { at, protocol, port } = key;
    let (set, of_place) = match at {
        HostPortPlace::Ip(at) => (AT_ADDRESS, Key::EMPTY.address(at)),
        HostPortPlace::Any(_) => (AT_ANY, Key::EMPTY),
    };
    Element {
        set,
        key: of_place.byte(protocol.number()).port(port.get()),
        value: Value::Data(endpoint(served.endpoint.ip(), served.endpoint.port())),
        comment: Some(served.pod.clone()),
    }
}

fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}
