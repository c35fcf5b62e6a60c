//! Session affinity: the chains of a class with session affinity, and the sizes of the maps of
//! clients.
//!
//! Clients can be forged: a first packet with a forged source is remembered like any other. So
//! there are three maps. A client is in the first that had room for it:
//!
//! 1. `affinity` takes all clients while there is room.
//! 2. `affinity-reserved` takes local pods, which cannot be forged, since input interface and
//!    address must match; and new clients of each service port within its budget.
//! 3. `affinity-brief` takes all other clients, for a short time: it is empty soon after a flood.
//!
//! A flood of one service port uses up the first map, that port's own budget, and the last map.
//! Other service ports keep their budgets. A client that is remembered stays in its map.

use super::draw::cascade;
use super::name::{ChainName, Class, SetName};
use super::rule::{Action, Budget, Chain, Match, Rule, chain};
use crate::why::Why;

/// New clients of one service port that the reserve takes at once, and in [`RESERVED_PERIOD`].
const RESERVED: u32 = 1024;
/// Kubernetes' default time-out, in seconds. A shorter one does not make the budget larger: an
/// entry that its client renews stays.
const RESERVED_PERIOD: u32 = 10_800;
/// How long the last map remembers, in seconds.
const BRIEF: u32 = 300;

/// The maps of clients, in the order in which they are looked at.
pub const MAPS: [SetName; 3] =
    [SetName::Affinity, SetName::AffinityReserved, SetName::AffinityBrief];

fn budget(seconds: u32) -> Budget {
    let seconds = seconds.max(RESERVED_PERIOD);
    Budget { burst: RESERVED, hourly: RESERVED * 3600 / seconds, seconds }
}

/// The chain that looks up the client, and balances it if it is not remembered.
pub(super) fn balance(class: Class) -> Chain {
    let numbers = class.group.affinity_slots();
    let draw = |slots| Action::Draw { numbers, slots };
    let mut rules = vec![Rule::new(
        Why::WhichServicePort,
        [],
        [draw(1), Action::Jump(ChainName::Remembered(class))],
    )];
    rules.extend(cascade(class, Why::ChooseAndRemember, |slots| {
        [draw(slots), Action::Goto(ChainName::Remember(class))]
    }));
    rules.push(without_memory(class));
    chain(ChainName::Balance(class), Why::ChooseAndRemember, rules)
}

/// The chains that the balancing chain refers to.
pub(super) fn memory(class: Class, seconds: u32) -> [Chain; 2] {
    [remembered(class, seconds), remember(class, seconds)]
}

/// The chain that sends a client that is remembered to its endpoint, and returns for others.
fn remembered(class: Class, seconds: u32) -> Chain {
    let mut rules = vec![Rule::new(Why::WhichServicePort, [], [Action::KeepServicePort])];
    for map in MAPS {
        rules.extend([
            Rule::new(Why::Recall, [], [Action::Recall(map)]),
            Rule::new(
                Why::BackToLast,
                [Match::Recalled, Match::Protocol(class.protocol)],
                [stay(map, seconds), translate(class)],
            ),
            Rule::new(
                Why::LastIsGone,
                [Match::Recalled],
                [Action::Forget(map), Action::KeepServicePort],
            ),
        ]);
    }
    chain(ChainName::Remembered(class), Why::Recall, rules)
}

/// The chain that remembers a new client in the first map with room, and sends it to the endpoint
/// that was drawn.
fn remember(class: Class, seconds: u32) -> Chain {
    let protocol = Match::Protocol(class.protocol);
    let pod = [Match::In(SetName::LocalPods), protocol.clone()];
    let reserved = stay(SetName::AffinityReserved, seconds);
    let brief = stay(SetName::AffinityBrief, seconds);
    let budget = Action::Spend(budget(seconds));
    let to = translate(class);
    let rules = vec![
        Rule::new(Why::Remember, [protocol.clone()], [stay(SetName::Affinity, seconds), to]),
        Rule::new(Why::RememberPod, pod, [reserved, Action::Count, to]),
        Rule::new(
            Why::RememberWithinBudget,
            [protocol.clone()],
            [budget, reserved, Action::Count, to],
        ),
        Rule::new(Why::RememberBriefly, [protocol], [brief, Action::Count, to]),
        Rule::new(Why::NotRemembered, [], [Action::Count]),
        without_memory(class),
    ];
    chain(ChainName::Remember(class), Why::Remember, rules)
}

fn stay(map: SetName, seconds: u32) -> Action {
    let seconds = if map == SetName::AffinityBrief { seconds.min(BRIEF) } else { seconds };
    Action::Remember { map, seconds }
}

fn translate(class: Class) -> Action {
    Action::TranslateToNumber(class.group.affinity_endpoints())
}

fn without_memory(class: Class) -> Rule {
    let plain = Action::Goto(ChainName::Balance(class.plain()));
    Rule::new(Why::WithoutMemory, [], [plain])
}
