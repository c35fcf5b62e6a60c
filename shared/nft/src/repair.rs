//! What a read of the kernel found and repaired.

use std::ops::Add;

/// What a read of the kernel found and repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// The table's chains or sets were not ours, and everything was programmed again.
    pub rebuilt: bool,
    /// Chains that were missing or foreign.
    pub chains: usize,
    /// Elements that were missing, wrong or foreign.
    pub elements: usize,
}

impl Add for Repair {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rebuilt: self.rebuilt || other.rebuilt,
            chains: self.chains + other.chains,
            elements: self.elements + other.elements,
        }
    }
}

impl Repair {
    /// Whether nothing was repaired.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}
