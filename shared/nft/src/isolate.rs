//! Finds the parts of a batch that the kernel refuses, and commits everything else.

/// What was refused, with the kernel's reason.
pub type Refused<'a, T, E> = Vec<(&'a T, E)>;

/// Attempts that one isolation may cost; each part that is refused costs about twice the logarithm
/// of the number of items. After that many, a refused part is not halved any more, and counts as
/// refused as a whole.
const MOST_ATTEMPTS: usize = 2_000;

/// Gives `items` to `attempt`, and again in halves where it refuses, down to single items: those
/// that are refused alone are returned, all others are taken.
pub fn isolate<'a, T, E: Clone>(
    items: &'a [T],
    mut attempt: impl FnMut(&[T]) -> Result<(), E>,
) -> Refused<'a, T, E> {
    let mut refused = Vec::new();
    let mut parts = vec![items];
    let mut attempts = 0;
    while let Some(part) = parts.pop() {
        attempts += 1;
        match (attempt(part), part) {
            (Ok(()), _) => {}
            (Err(error), [item]) => refused.push((item, error)),
            (Err(error), _) if attempts >= MOST_ATTEMPTS => {
                refused.extend(part.iter().map(|item| (item, error.clone())));
            }
            (Err(_), _) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_but_the_bad_ones_are_taken_once(bad in proptest::collection::btree_set(0_usize..500, 0..20)) {
            let items: Vec<usize> = (0..500).collect();
            let mut taken = Vec::new();
            let refused = isolate(&items, |part| {
                if part.iter().any(|item| bad.contains(item)) {
                    return Err("refused");
                }
                taken.extend_from_slice(part);
                Ok(())
            });
            let refused: Vec<usize> = refused.into_iter().map(|(item, _)| *item).collect();
            prop_assert_eq!(&refused, &bad.iter().copied().collect::<Vec<_>>());
            let good: Vec<usize> = items.iter().copied().filter(|item| !bad.contains(item)).collect();
            prop_assert_eq!(taken, good);
        }
    }

    #[test]
    fn a_kernel_that_refuses_everything_is_not_asked_for_ever() {
        let items = vec![(); 100_000];
        let mut attempts = 0;
        let refused = isolate(&items, |_| {
            attempts += 1;
            Err(())
        });
        assert_eq!(refused.len(), items.len());
        assert!(attempts <= MOST_ATTEMPTS + 64, "{attempts} attempts");
    }
}
