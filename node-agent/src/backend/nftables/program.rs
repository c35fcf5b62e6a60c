//! The program: the chains that do not depend on what services there are, and those of a size class.
//!
//! Services and endpoints are data in maps. A service's element in [`SetName::Services`] names one chain,
//! and that one lookup decides everything about it at once (where to, masqueraded or not), so a packet that
//! races with a commit sees it before the change or after, never half.

use super::name::{ChainName, Class, Group, SetName};
use super::rule::{Action, Chain, Hook, Match, Rule};
use crate::backend::why::Why;
use crate::plan::Detector;
use ipnetwork::IpNetwork;

/// Before kube-proxy's `dstnat` (-100), so that denizen decides while another's rules are still there.
const DESTINATION_PRIORITY: i32 = -110;
/// `srcnat`.
const SOURCE_PRIORITY: i32 = 100;

/// Up to this size a class draws among every number of slots from its size down to one.
const WHOLE_CASCADE: u32 = 64;
/// Draws among the same number of slots in a larger class. More than half of the slots are taken, so that
/// this many misses in a row are as rare as the random number's own bias (2⁻³²).
const TRIES: u32 = 32;

/// What the constant part depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// How local traffic is told apart.
    pub detector: Detector,
    /// The ranges that the detector stands for, where it stands for ranges (of this family).
    pub ranges: Vec<IpNetwork>,
}

/// The chains that are always there, in an order in which each is made before it is referred to.
pub fn chains(shape: &Shape) -> Vec<Chain> {
    vec![
        chain(ChainName::NoEndpoints, Why::Refuse, refuse()),
        chain(
            ChainName::NoLocalEndpoints,
            Why::NoLocalEndpoint,
            vec![Rule::new(Why::NoLocalEndpoint, [], [Action::Count, Action::Drop])],
        ),
        chain(
            ChainName::MarkUnlessLocal,
            Why::ComesFromElsewhere,
            mark_unless_local(shape),
        ),
        chain(
            ChainName::NodePorts,
            Why::FindNodePort,
            vec![Rule::new(
                Why::FindNodePort,
                [],
                [Action::Lookup(SetName::NodePorts)],
            )],
        ),
        chain(ChainName::Services, Why::Dispatch, dispatch()),
        chain(ChainName::LocalPolicy, Why::StayOnNode, local_policy(shape)),
        base(
            ChainName::Prerouting,
            (Hook::Prerouting, DESTINATION_PRIORITY),
            Why::Arriving,
            vec![
                Rule::new(Why::StayOnNode, [], [Action::Jump(ChainName::LocalPolicy)]),
                Rule::new(Why::Dispatch, [], [Action::Jump(ChainName::Services)]),
            ],
        ),
        base(
            ChainName::Output,
            (Hook::Output, DESTINATION_PRIORITY),
            Why::Sending,
            vec![Rule::new(Why::Dispatch, [], [Action::Jump(ChainName::Services)])],
        ),
        base(
            ChainName::Postrouting,
            (Hook::Postrouting, SOURCE_PRIORITY),
            Why::Leaving,
            vec![
                Rule::new(
                    Why::MarkedAbove,
                    [Match::Marked],
                    [Action::Unmark, Action::Masquerade],
                ),
                Rule::new(
                    Why::Hairpin,
                    [Match::Translated, Match::In(SetName::Hairpin)],
                    [Action::Masquerade],
                ),
            ],
        ),
    ]
}

/// The chains of a class: the one that balances, then those that mark, where they should, and go to it.
/// Policy Local from elsewhere needs the first alone.
pub fn class_chains(class: Class) -> Vec<Chain> {
    let entries = match class.group {
        Group::Service | Group::NodePort => Vec::from(entries(class)),
        Group::LocalService | Group::LocalNodePort => Vec::new(),
    };
    std::iter::once(balance(class)).chain(entries).collect()
}

/// The chain that balances a class.
fn balance(class: Class) -> Chain {
    let translate = |slots| Action::Translate {
        endpoints: class.group.endpoints(),
        slots,
    };
    let mut rules: Vec<Rule> = draws(class.size)
        .enumerate()
        .map(|(n, slots)| {
            let why = if n == 0 {
                Why::Choose
            } else {
                Why::ChooseAmongFewer
            };
            Rule::new(why, [Match::Protocol(class.protocol)], [translate(slots)])
        })
        .collect();
    rules.push(Rule::new(Why::NeverUndone, [], [Action::Count, Action::Drop]));
    chain(ChainName::Balance(class), Why::Choose, rules)
}

/// The chains that mark, where they should, and then balance a class.
fn entries(class: Class) -> [Chain; 2] {
    let go = Rule::new(Why::Choose, [], [Action::Goto(ChainName::Balance(class))]);
    let unless_local = Rule::new(
        Why::ComesFromElsewhere,
        [],
        [Action::Jump(ChainName::MarkUnlessLocal)],
    );
    let always = Rule::new(Why::AnyNode, [], [Action::Mark]);
    [
        chain(
            ChainName::Cluster(class),
            Why::ComesFromElsewhere,
            vec![unless_local, go.clone()],
        ),
        chain(ChainName::External(class), Why::AnyNode, vec![always, go]),
    ]
}

/// Among how many slots a class draws, time after time, until one is taken. With the slots taken that a
/// class may have (more than a quarter of its size, without gaps) every endpoint is equally likely.
fn draws(size: u32) -> Box<dyn Iterator<Item = u32>> {
    if size <= WHOLE_CASCADE {
        return Box::new((1..=size).rev());
    }
    let tries = |slots| std::iter::repeat_n(slots, TRIES as usize);
    Box::new(tries(size).chain(tries(size / 2)).chain([size / 4, 1]))
}

fn refuse() -> Vec<Rule> {
    let tcp = Match::Protocol(crate::model::Protocol::Tcp);
    vec![
        Rule::new(Why::RefuseTcp, [tcp], [Action::Reset]),
        Rule::new(Why::Refuse, [], [Action::Unreachable]),
    ]
}

fn dispatch() -> Vec<Rule> {
    vec![
        Rule::new(Why::FindService, [], [Action::Lookup(SetName::Services)]),
        Rule::new(
            Why::UnusedPort,
            [Match::In(SetName::ClusterIps)],
            [Action::Goto(ChainName::NoEndpoints)],
        ),
        Rule::new(
            Why::OwnAddress,
            [Match::In(SetName::NodePortAddresses)],
            [Action::Goto(ChainName::NodePorts)],
        ),
    ]
}

/// What is local, a rule each: a list of values is one chain of returns before one mark (KEP-2450's
/// MASQ-IF-NOT-LOCAL).
fn local(shape: &Shape) -> Vec<Match> {
    match &shape.detector {
        Detector::PodState => vec![Match::In(SetName::LocalPods)],
        Detector::Bridge(names) => names.iter().cloned().map(Match::InputInterface).collect(),
        Detector::InterfacePrefix(prefixes) => prefixes.iter().cloned().map(Match::InputPrefix).collect(),
        Detector::NodeCidr(_) => shape.ranges.iter().copied().map(Match::Source).collect(),
    }
}

fn mark_unless_local(shape: &Shape) -> Vec<Rule> {
    let returns = local(shape)
        .into_iter()
        .map(|is| Rule::new(Why::LocalPod, [is], [Action::Return]));
    returns
        .chain([Rule::new(Why::ComesFromElsewhere, [], [Action::Mark])])
        .collect()
}

fn local_policy(shape: &Shape) -> Vec<Rule> {
    let returns = local(shape)
        .into_iter()
        .map(|is| Rule::new(Why::PodsAreInside, [is], [Action::Return]));
    let lookups = [
        Rule::new(Why::StayOnNode, [], [Action::Lookup(SetName::LocalServices)]),
        Rule::new(
            Why::StayOnNode,
            [Match::In(SetName::NodePortAddresses)],
            [Action::Lookup(SetName::LocalNodePorts)],
        ),
    ];
    returns.chain(lookups).collect()
}

fn chain(name: ChainName, why: Why, rules: Vec<Rule>) -> Chain {
    Chain {
        name,
        hook: None,
        why,
        rules,
    }
}

fn base(name: ChainName, hook: (Hook, i32), why: Why, rules: Vec<Rule>) -> Chain {
    Chain {
        name,
        hook: Some(hook),
        why,
        rules,
    }
}
