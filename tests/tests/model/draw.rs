//! Random decisions from a list of numbers. A 0 always is the plainest decision, so a world is
//! shrunk by putting zeros into its list.

/// The numbers of a seed (Vigna's SplitMix64).
pub fn numbers(seed: u64, count: usize) -> Vec<u16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 48) as u16
    };
    (0..count).map(|_| next()).collect()
}

/// The same with as many zeros as still fail.
pub fn shrunk(mut numbers: Vec<u16>, fails: impl Fn(&[u16]) -> bool) -> Vec<u16> {
    for width in [256, 64, 16, 4, 1, 1] {
        for from in (0..numbers.len()).step_by(width) {
            let to = numbers.len().min(from + width);
            if numbers[from..to].iter().all(|number| *number == 0) {
                continue;
            }
            let mut plainer = numbers.clone();
            plainer[from..to].fill(0);
            if fails(&plainer) {
                numbers = plainer;
            }
        }
    }
    numbers
}

/// Numbers, used up one by one.
#[derive(Debug)]
pub struct Draw<'a> {
    numbers: &'a [u16],
}

impl<'a> Draw<'a> {
    pub fn new(numbers: &'a [u16]) -> Self {
        Self { numbers }
    }

    /// The next so many, for a part of the world: what another part draws does not shift them.
    pub fn part(&mut self, count: usize) -> Draw<'a> {
        let (part, rest) = self.numbers.split_at(count.min(self.numbers.len()));
        self.numbers = rest;
        Draw::new(part)
    }

    /// A number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        let (first, rest) = self.numbers.split_first().unwrap_or((&0, &[]));
        self.numbers = rest;
        usize::from(*first) % count
    }

    /// Yes, in so many of a hundred cases.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) >= 100 - chance
    }

    /// One of these.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// So many of these, in any order, perhaps the same twice.
    pub fn some<T: Copy>(&mut self, of: &[T], most: usize) -> Vec<T> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.one(of)).collect()
    }

    /// The same without repetition, and in order.
    pub fn subset<T: Copy>(&mut self, of: &[T], chance: usize) -> Vec<T> {
        of.iter().filter(|_| self.percent(chance)).copied().collect()
    }
}
