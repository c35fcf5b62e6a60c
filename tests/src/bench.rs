//! The words behind `--` of `cargo bench`: which parts are measured, and for which sizes.

use anyhow::{Result, bail};

/// The sizes that a bench has.
#[derive(Debug, Clone, Copy)]
pub enum Sizes<'a> {
    /// These.
    Of(&'a [usize]),
    /// Any number.
    Any,
}

/// What is measured: all that is not named, if nothing of its kind is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    parts: Vec<&'static str>,
    /// The sizes; with [`Sizes::Any`] only those that are named.
    pub sizes: Vec<usize>,
}

impl Chosen {
    /// From the words of the command line.
    ///
    /// # Errors
    /// A word that is neither a part nor a size: it would measure nothing, or something else than
    /// was asked for.
    pub fn of(words: &[String], parts: &[&'static str], sizes: Sizes<'_>) -> Result<Self> {
        let (mut named, mut numbers) = (Vec::new(), Vec::new());
        // cargo adds the flag.
        for word in words.iter().filter(|word| *word != "--bench") {
            match (parts.iter().find(|part| *part == word), word.parse()) {
                (Some(part), _) => named.push(*part),
                (None, Ok(number)) if sizes.has(number) => numbers.push(number),
                (None, _) => {
                    let known = [listed("parts", parts), sizes.known()];
                    let known = known.concat();
                    bail!("{word:?} chooses nothing: {}", known.trim_end_matches("; "));
                }
            }
        }
        if named.is_empty() {
            named.extend(parts);
        }
        if let (true, Sizes::Of(all)) = (numbers.is_empty(), sizes) {
            numbers.extend(all);
        }
        Ok(Self { parts: named, sizes: numbers })
    }

    /// Whether this part is measured.
    pub fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }
}

impl Sizes<'_> {
    fn has(self, number: usize) -> bool {
        match self {
            Self::Of(sizes) => sizes.contains(&number),
            Self::Any => number > 0,
        }
    }

    fn known(self) -> String {
        match self {
            Self::Of(sizes) => listed("sizes", sizes),
            Self::Any => "a size is a number above 0".to_owned(),
        }
    }
}

/// Nothing if there are none.
fn listed<T: ToString>(what: &str, all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("the {what} are {}; ", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [&str; 2] = ["cold", "memory"];
    const SIZES: [usize; 2] = [1_000, 50_000];

    fn chosen(words: &str, sizes: Sizes<'_>) -> Result<(Vec<&'static str>, Vec<usize>)> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Chosen::of(&words, &PARTS, sizes).map(|chosen| (chosen.parts, chosen.sizes))
    }

    #[test]
    fn what_is_named_is_measured_and_everything_if_nothing_is() -> Result<()> {
        let all = Sizes::Of(&SIZES);
        assert_eq!(chosen("--bench", all)?, (PARTS.to_vec(), SIZES.to_vec()));
        assert_eq!(chosen("cold --bench", all)?, (vec!["cold"], SIZES.to_vec()));
        assert_eq!(chosen("50000 memory --bench", all)?, (vec!["memory"], vec![50_000]));
        assert_eq!(chosen("7 --bench", Sizes::Any)?, (PARTS.to_vec(), vec![7]));
        Ok(())
    }

    #[test]
    fn a_word_that_chooses_nothing_is_an_error_that_says_what_there_is() {
        for (words, sizes) in [
            ("cold 100000 --bench", Sizes::Of(&SIZES)),
            ("cold 1000 100000 --bench", Sizes::Of(&SIZES)),
            ("warm --bench", Sizes::Of(&SIZES)),
            ("--warm --bench", Sizes::Of(&SIZES)),
            ("cold 0 --bench", Sizes::Any),
            ("7 --bench", Sizes::Of(&[])),
        ] {
            let error = chosen(words, sizes).unwrap_err().to_string();
            assert!(error.contains("the parts are cold, memory"), "{words}: {error}");
        }
        let error = chosen("100000", Sizes::Of(&SIZES)).unwrap_err().to_string();
        let expected =
            "\"100000\" chooses nothing: the parts are cold, memory; the sizes are 1000, 50000";
        assert_eq!(error, expected);
    }
}
