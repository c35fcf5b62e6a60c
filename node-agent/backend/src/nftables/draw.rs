//! How a class draws one endpoint, each with the same probability.

use super::name::Class;
use super::rule::{is_over, rule};
use crate::why::Why;
use denizen_nft::{Rule, Statement};

/// Up to this size a class draws among every number of slots from its size down to one.
const WHOLE_CASCADE: u32 = 64;
/// The number of draws among all slots of a larger class, and then among half of them. In one of
/// the two rounds more than half of the slots are taken, so that this many misses in a row are as
/// rare as the random number's own bias (2⁻³²).
const TRIES: u32 = 32;

/// A rule for each draw of a class.
pub fn cascade<const N: usize>(
    class: Class,
    first: Why,
    choose: impl Fn(u32) -> [Statement; N],
) -> Vec<Rule> {
    let whys = std::iter::once(first).chain(std::iter::repeat(Why::ChooseAmongFewer));
    let draws = draws(class.size).zip(whys);
    draws
        .map(|(slots, why)| rule(why, [is_over(class.protocol)].into_iter().chain(choose(slots))))
        .collect()
}

/// The numbers of slots among which a class draws, one after the other, until a slot has an
/// endpoint. More than a quarter of a class's slots are occupied, without gaps, so every endpoint
/// has the same probability.
fn draws(size: u32) -> Box<dyn Iterator<Item = u32>> {
    if size <= WHOLE_CASCADE {
        return Box::new((1..=size).rev());
    }
    let tries = |slots| std::iter::repeat_n(slots, TRIES as usize);
    Box::new(tries(size).chain(tries(size / 2)).chain([size / 4, 1]))
}
