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
use super::name::{ChainName, Class, ServiceSet};
use super::rule::{
    SetStatements, chain, goto, is_over, is_recalled, jump, keep_service_port, rule, spend,
};
use crate::why::Why;
use denizen_nft::{Chain, Limit, Rule, Statement};

/// The budget: how many new clients of one service port the reserve takes at once, and then in each
/// [`RESERVED_PERIOD`].
const RESERVED: u32 = 1024;
/// Kubernetes' default time-out, in seconds. A service's shorter time-out does not make the budget
/// larger: an entry that its client renews stays.
const RESERVED_PERIOD: u32 = 10_800;
/// How long the last map remembers, in seconds.
const BRIEF: u32 = 300;

/// The maps of clients, in the order in which they are looked at.
pub const MAPS: [ServiceSet; 3] =
    [ServiceSet::Affinity, ServiceSet::AffinityReserved, ServiceSet::AffinityBrief];

/// The chain that looks up the client, and balances a client that is not remembered.
pub(super) fn balance(sets: SetStatements, class: Class) -> Chain {
    let draw = |slots| sets.draw(class.group.affinity_slots(), slots);
    let mut rules =
        vec![rule(Why::WhichServicePort, [draw(1), jump(ChainName::Remembered(class))])];
    rules.extend(cascade(class, Why::ChooseAndRemember, |slots| {
        [draw(slots), goto(ChainName::Remember(class))]
    }));
    rules.push(without_memory(class));
    chain(ChainName::Balance(class), Why::ChooseAndRemember, rules)
}

/// The chains that the balancing chain refers to.
pub(super) fn memory(sets: SetStatements, class: Class, seconds: u32) -> [Chain; 2] {
    let chains = AffinityChains { sets, class, seconds };
    [chains.remembered(), chains.remember()]
}

struct AffinityChains {
    sets: SetStatements,
    class: Class,
    seconds: u32,
}

impl AffinityChains {
    /// The chain that sends a client that is remembered to its endpoint, and returns for others.
    fn remembered(&self) -> Chain {
        let mut rules = vec![rule(Why::WhichServicePort, [keep_service_port()])];
        for map in MAPS {
            let is_to = [is_recalled(), is_over(self.class.protocol)];
            rules.extend([
                rule(Why::Recall, [self.sets.recall(map)]),
                rule(Why::BackToLast, is_to.into_iter().chain([self.stay(map), self.translate()])),
                rule(Why::LastIsGone, [is_recalled(), self.sets.forget(map), keep_service_port()]),
            ]);
        }
        chain(ChainName::Remembered(self.class), Why::Recall, rules)
    }

    /// The chain that remembers a new client in the first map with room, and sends it to the
    /// endpoint that was drawn.
    fn remember(&self) -> Chain {
        let is_over = || is_over(self.class.protocol);
        let to = || self.translate();
        let is_pod = self.sets.is_in(ServiceSet::LocalPods);
        let [all, reserved, brief] = MAPS.map(|map| self.stay(map));
        let period = self.seconds.max(RESERVED_PERIOD);
        let budget = spend(Limit { burst: RESERVED, hourly: RESERVED * 3600 / period }, period);
        let rules = vec![
            rule(Why::Remember, [is_over(), all, to()]),
            rule(Why::RememberPod, [is_pod, is_over(), reserved.clone(), Statement::Counter, to()]),
            rule(
                Why::RememberWithinBudget,
                [is_over(), budget, reserved, Statement::Counter, to()],
            ),
            rule(Why::RememberBriefly, [is_over(), brief, Statement::Counter, to()]),
            rule(Why::NotRemembered, [Statement::Counter]),
            without_memory(self.class),
        ];
        chain(ChainName::Remember(self.class), Why::Remember, rules)
    }

    fn stay(&self, map: ServiceSet) -> Statement {
        let is_brief = map == ServiceSet::AffinityBrief;
        self.sets.remember(map, if is_brief { self.seconds.min(BRIEF) } else { self.seconds })
    }

    fn translate(&self) -> Statement {
        self.sets.translate_to_number(self.class.group.affinity_endpoints())
    }
}

fn without_memory(class: Class) -> Rule {
    rule(Why::WithoutMemory, [goto(ChainName::Balance(class.plain()))])
}
