use super::super::name::{Class, Group, ServiceTable};
use super::super::program::class_chains;
use denizen_model::{Family, Protocol};
use denizen_nft::{Assigned, Chain, Field, Statement};
use denizen_plan::NodeSide;

fn chains(size: u32, affinity: Option<u32>) -> Vec<Chain> {
    let class = Class { group: Group::Service, protocol: Protocol::Tcp, size, affinity };
    class_chains(ServiceTable::Ip(Family::V4), class, &NodeSide::default())
}

/// Among how many slots each rule of the balancing chain draws.
fn draws(size: u32, affinity: Option<u32>) -> Vec<u32> {
    let chains = chains(size, affinity);
    let balance = chains.iter().find(|chain| chain.name.starts_with("lb-")).unwrap();
    let asks = |statement: &Statement| matches!(statement, Statement::Equals(Field::Protocol, _));
    let cascade = balance.rules.iter().filter(|rule| rule.statements.first().is_some_and(asks));
    let drawn = cascade.flat_map(|rule| &rule.statements).filter_map(|statement| {
        let (Statement::Dnat(_, lookup) | Statement::Assign(_, Assigned::Found(lookup))) =
            statement
        else {
            return None;
        };
        lookup
            .key
            .iter()
            .find_map(|field| if let Field::Random(slots) = field { Some(*slots) } else { None })
    });
    drawn.collect()
}

/// How likely the first and the last of `taken` slots are chosen, and how likely none is.
fn chances(draws: &[u32], taken: u32) -> (f64, f64, f64) {
    let (mut first, mut last, mut left) = (0.0, 0.0, 1.0);
    for slots in draws.iter().copied() {
        let each = left / f64::from(slots);
        first += each;
        if taken <= slots {
            last += each;
        }
        left -= each * f64::from(taken.min(slots));
    }
    (first, last, left)
}

/// A slot's chance does not grow with its number, so the first's and the last's bound all others.
#[test]
fn every_endpoint_is_as_likely_as_the_others_and_one_is_always_found() {
    for size in (0..=16).map(|bits| 1_u32 << bits) {
        for affinity in [None, Some(300)] {
            let draws = draws(size, affinity);
            for taken in size / 4 + 1..=size {
                let (first, last, left) = chances(&draws, taken);
                let fair = 1.0 / f64::from(taken);
                for chance in [first, last] {
                    assert!(
                        (chance / fair - 1.0).abs() < 1e-9,
                        "{taken} of {size}: {chance}, not {fair}"
                    );
                }
                assert!(left.abs() < 1e-12, "{taken} of {size}: {left} finds none");
            }
        }
    }
}

/// While a service shrinks within a batch, a packet may see fewer slots than its class allows.
#[test]
fn one_endpoint_left_is_still_found() {
    for size in (0..=16).map(|bits| 1_u32 << bits) {
        let (_, _, left) = chances(&draws(size, None), 1);
        assert!(left.abs() < 1e-12, "1 of {size}: {left} finds none");
    }
}

#[test]
fn a_class_has_few_rules_however_large_it_is() {
    for size in (0..=16).map(|bits| 1_u32 << bits) {
        let rules: usize = chains(size, None).iter().map(|chain| chain.rules.len()).sum();
        assert!(rules <= 71, "{size}: {rules}");
    }
}
