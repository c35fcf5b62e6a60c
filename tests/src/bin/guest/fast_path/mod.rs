//! What packets of pods cost a node with and without a flowtable of nf_tables: the real agent's
//! rules, and a hand-written flowtable beside them that comes and goes.
//!
//! The emulator's clock counts instructions, so that neither the machine outside nor what else runs
//! there matters. An instruction is not a nanosecond of a real processor: what is compared is the
//! same work with and without the flowtable, in turns.

mod cost;
mod node;
mod table;
mod work;

use std::fs;

use anyhow::Result;
use denizen_tests::pod::Wiring;

use self::cost::{Cost, Ratios};
use self::node::{Node, Target};
use self::work::Work;

/// How often everything is measured. Every second round goes backwards.
const ROUNDS: usize = 5;

/// Which rules the agent has programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Those of services.
    Services,
    /// … and those of NetworkPolicies, which isolate both pods.
    Policies,
}

/// Beside which rules packets go where.
const BESIDE: [(Rules, &[Target]); 2] =
    [(Rules::Services, &[Target::Pod, Target::Service]), (Rules::Policies, &[Target::Service])];

/// From where to where, beside which rules.
#[derive(Debug, Clone, Copy)]
struct Route {
    rules: Rules,
    wiring: Wiring,
    target: Target,
}

/// What the table's columns are. "All" is the work of both ends and of the node between them; "node
/// and pod" leaves out half of what the same work takes between two pods without a node, and "node"
/// leaves out all of that. "Same" compares the work without a flowtable with itself. "Forwarded" is
/// the part of the packets that did not take the fast path.
const HEAD: &str = "\
| rules | pod | to | work | flowtable | without | with | ends | all | node and pod | node | same \
| forwarded |
|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// The figures of one kernel, as a table: instructions for a unit of work, and ratios of those with
/// a flowtable to those without.
pub(crate) fn measured() -> Result<()> {
    println!("{}", fs::read_to_string("/proc/version")?.trim());
    let node = Node::new()?;
    let ends = Work::ALL.map(|work| ends(&node, work)).into_iter().collect::<Result<Vec<_>>>()?;
    println!("{HEAD}");
    for (rules, targets) in BESIDE {
        node.program(rules)?;
        for wiring in [Wiring::Routed, Wiring::Bridged] {
            for target in targets {
                let route = Route { rules, wiring, target: *target };
                for (work, ends) in Work::ALL.into_iter().zip(&ends) {
                    compare(&node, route, work, *ends)?;
                }
            }
        }
    }
    Ok(())
}

/// The instructions for a unit of this work between two pods without a node between them.
fn ends(node: &Node, work: Work) -> Result<f64> {
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        costs.push(node.between_ends(work)?.instructions / work.units());
    }
    Ok(cost::median(costs))
}

/// Measures one work in turns, and prints a line for each flowtable.
fn compare(node: &Node, route: Route, work: Work, ends: f64) -> Result<()> {
    let paths = work.paths(route.wiring);
    let rounds: Vec<Vec<Cost>> =
        (0..ROUNDS).map(|number| round(node, route, work, number)).collect::<Result<_>>()?;
    // The first and the last are without.
    let last = paths.len() - 1;
    let of = |at: usize| move |costs: &Vec<Cost>| costs[at].instructions / work.units();
    let without = |costs: &Vec<Cost>| f64::midpoint(of(0)(costs), of(last)(costs));
    let same = Ratios::of(&rounds, |costs| of(last)(costs) / of(0)(costs));
    for (at, path) in paths.iter().enumerate().take(last).skip(1) {
        let but = |part: f64| {
            Ratios::of(&rounds, |it| (of(at)(it) - part * ends) / (without(it) - part * ends))
        };
        let Route { rules, wiring, target } = route;
        println!(
            "| {rules:?} | {wiring:?} | {target:?} | {work} | {path} | {:.0} | {:.0} | {ends:.0} \
             | {} | {} | {} | {same} | {:.1} % |",
            cost::median(rounds.iter().map(without).collect()),
            cost::median(rounds.iter().map(of(at)).collect()),
            but(0.0),
            but(0.5),
            but(1.0),
            100.0 * cost::median(rounds.iter().map(|it| it[at].forwarded).collect()),
        );
    }
    Ok(())
}

/// Measures it once each way.
fn round(node: &Node, route: Route, work: Work, number: usize) -> Result<Vec<Cost>> {
    let paths = work.paths(route.wiring);
    let mut costs = vec![Cost::default(); paths.len()];
    for step in 0..paths.len() {
        let at = if number.is_multiple_of(2) { step } else { paths.len() - 1 - step };
        costs[at] = node.measured(route, work, paths[at])?;
    }
    Ok(costs)
}
