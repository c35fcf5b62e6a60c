//! Random decisions from a list of numbers that proptest makes. A 0 always is the plainest
//! decision, so that proptest, which shrinks numbers towards 0, makes worlds plainer.

/// Numbers, used up one by one.
#[derive(Debug)]
pub struct Draw<'a> {
    numbers: &'a [u16],
}

impl<'a> Draw<'a> {
    pub fn new(numbers: &'a [u16]) -> Self {
        Self { numbers }
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
