//! A rule, and its text exactly as `iptables-save` prints it.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::name::{ChainName, IpsetName, OWNER};
use crate::why::Why;
use denizen_model::{Family, Protocol};
use denizen_plan::MarkBit;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Its source is in this range.
    Source(IpNetwork),
    /// Its destination is in this range.
    Destination(IpNetwork),
    /// It came in through this interface; a `+` at the end stands for any rest.
    Input(Arc<str>),
    /// It is of this protocol.
    Protocol(Protocol),
    /// It goes to this port (of the protocol that another test names).
    Port(Protocol, u16),
    /// Its source is one of the node's own addresses.
    FromNode,
    /// Its destination is one of the node's own addresses.
    ToNode,
    /// It comes from a recorded pod: source address and input interface are in the set.
    FromPod,
    /// The same, for the set of bridged pods whose port of the bridge must match too. A bit of the
    /// mark shows the port, so that needs a test of its own.
    FromBridgedPod,
    /// It came in through a port of a bridge.
    BridgePort,
    /// Its mark has this bit.
    Marked(MarkBit),
    /// It begins a connection. This test comes before the comment, as in kube-proxy: iptables
    /// treats rules as different if their order differs, and each program would add its own jump.
    New,
    /// Its connection is in one of these states.
    State(&'static str),
    /// It is the first packet of its connection, not a retransmission. Only such packets pass nat.
    FirstPacket,
    /// One packet in this many, at random.
    OneIn(u32),
    /// The client used this endpoint within this many seconds.
    Recent(ChainName, u32),
    /// Always matches, and remembers the client with this endpoint.
    Remember(ChainName),
}

/// A test of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    condition: Match,
    /// The condition must not hold (`!`).
    is_negated: bool,
}

/// All tests of a rule: each must pass.
pub type Tests = Vec<Test>;

/// The only test, if there is exactly one: then a rule can require that it does not hold.
pub fn only_test(rules: &[Tests]) -> Option<&Test> {
    match rules {
        [only] if only.len() == 1 => only.first(),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Jumps to a chain.
    Jump(ChainName),
    /// Accepts.
    Accept,
    /// Drops.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// Rejects, with the protocol's own answer (a TCP reset, or an ICMP error).
    Reject(Protocol),
    /// Sets this bit of the mark.
    Mark(MarkBit),
    /// Clears this bit of the mark, which must be set.
    Unmark(MarkBit),
    /// Sets this bit of the connection's mark.
    Admit(MarkBit),
    /// Clears this bit of the connection's mark.
    Dismiss(MarkBit),
    /// Replaces the source by the node's address.
    Masquerade,
    /// Replaces the destination.
    Translate(SocketAddr),
}

/// A rule. Its comment says what it is about and why it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    about: Arc<str>,
    why: Why,
    tests: Tests,
    target: Target,
}

/// The kernel's XT_MAX_COMMENT_LEN, without the zero that ends it.
const LONGEST_COMMENT: usize = 255;

impl Rule {
    /// The only constructor: each rule has a reason.
    pub fn new(
        why: Why,
        about: &Arc<str>,
        tests: impl IntoIterator<Item = Match>,
        target: Target,
    ) -> Self {
        Self { about: about.clone(), why, tests: tests.into_iter().map(Test::is).collect(), target }
    }

    /// A rule for every packet. Its comment shows a restarted agent that the chains are ours.
    pub fn owned(why: Why, target: Target) -> Self {
        Self::new(why, &OWNER.trim_end_matches(": ").into(), [], target)
    }

    /// Adds a negated test.
    #[must_use]
    pub fn unless(mut self, test: Match) -> Self {
        self.tests.push(Test::is_not(test));
        self
    }

    /// Adds tests.
    #[must_use]
    pub fn also(mut self, tests: impl IntoIterator<Item = Test>) -> Self {
        self.tests.extend(tests);
        self
    }

    /// What follows the chain's name in `iptables-save`.
    pub fn text(&self, family: Family) -> String {
        // Longer than most rules, to avoid reallocation.
        let mut text = String::with_capacity(256);
        let written = self.write(family, &mut text);
        written.expect("a string takes everything");
        text
    }

    fn write(&self, family: Family, text: &mut String) -> fmt::Result {
        for at in TestPosition::BEFORE_COMMENT {
            for test in self.tests.iter().filter(|test| test.condition.position() == at) {
                test.write_plain(text)?;
            }
        }
        write!(text, "-m comment --comment \"")?;
        write_comment(&self.about, self.why.text(), text)?;
        write!(text, "\"")?;
        for test in &self.tests {
            test.write_extension(family, text)?;
        }
        self.target.write(family, text)
    }
}

/// The position at which `iptables-save` prints a test, in whichever order tests are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestPosition {
    Source,
    Destination,
    Input,
    Protocol,
    First,
    Extension,
}

impl TestPosition {
    const BEFORE_COMMENT: [Self; 5] =
        [Self::Source, Self::Destination, Self::Input, Self::Protocol, Self::First];
}

impl Match {
    fn position(&self) -> TestPosition {
        match self {
            Self::Source(_) => TestPosition::Source,
            Self::Destination(_) => TestPosition::Destination,
            Self::Input(_) => TestPosition::Input,
            Self::Protocol(_) | Self::Port(..) => TestPosition::Protocol,
            Self::New => TestPosition::First,
            Self::FromNode
            | Self::ToNode
            | Self::FromPod
            | Self::FromBridgedPod
            | Self::BridgePort
            | Self::Marked(_)
            | Self::State(_)
            | Self::FirstPacket
            | Self::OneIn(_)
            | Self::Recent(..)
            | Self::Remember(_) => TestPosition::Extension,
        }
    }
}

impl Test {
    pub fn is(condition: Match) -> Self {
        Self { condition, is_negated: false }
    }

    pub fn is_not(condition: Match) -> Self {
        Self { condition, is_negated: true }
    }

    /// The test that passes where this one does not.
    pub fn inverted(&self) -> Self {
        Self { condition: self.condition.clone(), is_negated: !self.is_negated }
    }

    /// `! ` before a negated condition.
    fn negation(&self) -> &'static str {
        if self.is_negated { "! " } else { "" }
    }

    /// Writes the part before the comment, if the condition has one.
    fn write_plain(&self, text: &mut String) -> fmt::Result {
        let not = self.negation();
        match &self.condition {
            // `iptables-save` omits tests that every packet passes.
            Match::Source(range) | Match::Destination(range)
                if !self.is_negated && range.prefix() == 0 =>
            {
                Ok(())
            }
            Match::Source(range) => write!(text, "{not}-s {} ", network(range)),
            Match::Destination(range) => write!(text, "{not}-d {} ", network(range)),
            Match::Input(name) => write!(text, "{not}-i {name} "),
            Match::Protocol(protocol) | Match::Port(protocol, _) => {
                write!(text, "{not}-p {protocol} ")
            }
            Match::New => write!(text, "-m conntrack {not}--ctstate NEW "),
            Match::FromNode
            | Match::ToNode
            | Match::FromPod
            | Match::FromBridgedPod
            | Match::BridgePort
            | Match::Marked(_)
            | Match::State(_)
            | Match::FirstPacket
            | Match::OneIn(_)
            | Match::Recent(..)
            | Match::Remember(_) => Ok(()),
        }
    }

    /// Writes the part behind the comment, if the condition has one.
    fn write_extension(&self, family: Family, text: &mut String) -> fmt::Result {
        let not = self.negation();
        match &self.condition {
            Match::Source(_) | Match::Destination(_) | Match::Input(_) | Match::New => Ok(()),
            Match::Protocol(protocol) => write!(text, " -m {protocol}"),
            Match::Port(protocol, port) => write!(text, " -m {protocol} --dport {port}"),
            Match::FromNode => write!(text, " -m addrtype {not}--src-type LOCAL"),
            Match::ToNode => write!(text, " -m addrtype {not}--dst-type LOCAL"),
            Match::FromPod => self.write_set(IpsetName::Pods(family), text),
            Match::FromBridgedPod => self.write_set(IpsetName::BridgedPods(family), text),
            Match::BridgePort => write!(text, " -m physdev {not}--physdev-is-in"),
            Match::Marked(bit) => write!(text, " -m mark {not}--mark {0:#x}/{0:#x}", bit.mask()),
            Match::State(states) => write!(text, " -m conntrack {not}--ctstate {states}"),
            Match::FirstPacket if !self.is_negated => {
                write!(text, " -m conntrack ! --ctstatus CONFIRMED")
            }
            Match::FirstPacket => write!(text, " -m conntrack --ctstatus CONFIRMED"),
            Match::OneIn(n) => {
                write!(text, " -m statistic --mode random --probability {}", probability(*n))
            }
            Match::Recent(name, seconds) => write!(
                text,
                " -m recent --rcheck --seconds {seconds} --reap --name {name} --mask {} --rsource",
                whole_mask(family)
            ),
            Match::Remember(name) => write!(
                text,
                " -m recent --set --name {name} --mask {} --rsource",
                whole_mask(family)
            ),
        }
    }

    fn write_set(&self, set: IpsetName, text: &mut String) -> fmt::Result {
        write!(text, " -m set {}--match-set {} src,src", self.negation(), set.as_str())
    }
}

impl Target {
    fn write(self, family: Family, text: &mut String) -> fmt::Result {
        match self {
            Self::Jump(chain) => write!(text, " -j {chain}"),
            Self::Accept => write!(text, " -j ACCEPT"),
            Self::Drop => write!(text, " -j DROP"),
            Self::Return => write!(text, " -j RETURN"),
            Self::Reject(protocol) => {
                let with = match (protocol, family) {
                    (Protocol::Tcp, _) => "tcp-reset",
                    (Protocol::Udp | Protocol::Sctp, Family::V4) => "icmp-port-unreachable",
                    (Protocol::Udp | Protocol::Sctp, Family::V6) => "icmp6-port-unreachable",
                };
                write!(text, " -j REJECT --reject-with {with}")
            }
            Self::Mark(bit) => write!(text, " -j MARK --set-xmark {0:#x}/{0:#x}", bit.mask()),
            // The bit is set here, so xor clears it.
            Self::Unmark(bit) => write!(text, " -j MARK --set-xmark {:#x}/0x0", bit.mask()),
            Self::Admit(bit) => write!(text, " -j CONNMARK --set-xmark {0:#x}/{0:#x}", bit.mask()),
            Self::Dismiss(bit) => write!(text, " -j CONNMARK --set-xmark 0x0/{:#x}", bit.mask()),
            Self::Masquerade => write!(text, " -j MASQUERADE --random-fully"),
            Self::Translate(to) => write!(text, " -j DNAT --to-destination {to}"),
        }
    }
}

fn network(range: &IpNetwork) -> String {
    format!("{}/{}", range.network(), range.prefix())
}

/// A single address.
pub fn host(address: IpAddr) -> IpNetwork {
    IpNetwork::from(address)
}

/// The probability 1/`n` as the kernel holds it (a fraction of 2³¹), with the precision of
/// `iptables-save`. With five digits, as kube-proxy once had, the last of a thousand endpoints got
/// far too many connections.
fn probability(n: u32) -> String {
    const WHOLE: f64 = (1_u32 << 31) as f64;
    format!("{:.11}", (WHOLE / f64::from(n)).round() / WHOLE)
}

fn whole_mask(family: Family) -> &'static str {
    match family {
        Family::V4 => "255.255.255.255",
        Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// Escapes as `iptables-save` does. Characters that a line cannot have become question marks.
fn write_comment(about: &str, why: &str, text: &mut String) -> fmt::Result {
    let between = if about.is_empty() { "" } else { ": " };
    let room = LONGEST_COMMENT - why.len() - between.len();
    let about = &about[..about.floor_char_boundary(room)];
    for c in [about, between, why].into_iter().flat_map(str::chars) {
        match c {
            '"' | '\\' | '\'' => write!(text, "\\{c}")?,
            c if c.is_control() => text.write_char('?')?,
            c => text.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_what_the_kernel_holds() {
        let cases = [(2, "0.50000000000"), (3, "0.33333333349"), (1000, "0.00100000016")];
        for (n, text) in cases {
            assert_eq!(probability(n), text);
        }
    }

    #[test]
    fn a_range_of_every_address_asks_nothing() {
        let every = Match::Destination("0.0.0.0/0".parse().unwrap());
        let rule = Rule::new(Why::StaysInside, &"".into(), [every.clone()], Target::Return);
        let text = rule.text(Family::V4);
        assert!(!text.contains("-d"), "{text}");
        let nobody = Rule::new(Why::StaysInside, &"".into(), [], Target::Return).unless(every);
        let text = nobody.text(Family::V4);
        assert!(text.starts_with("! -d 0.0.0.0/0 "), "{text}");
    }

    #[test]
    fn a_comment_is_one_line_of_what_the_kernel_takes() {
        let long: Arc<str> = "ü\n".repeat(200).into();
        let rule = Rule::new(Why::Hairpin, &long, [], Target::Return);
        let text = rule.text(Family::V4);
        let comment = text.split('"').nth(1).unwrap();
        assert!(comment.len() <= LONGEST_COMMENT && !comment.contains('\n'), "{comment}");
        assert!(comment.ends_with(Why::Hairpin.text()), "{comment}");
    }
}
