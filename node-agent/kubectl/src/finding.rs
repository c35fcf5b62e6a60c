//! Merges equal texts of many nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// How many names a list shows before it counts the rest.
const NAMES: usize = 5;

/// How many texts of one shape are shown.
const TEXTS: usize = 3;

/// Texts of several nodes that only differ in names and numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommonText {
    /// The texts with the nodes' own values, each once.
    pub texts: BTreeSet<String>,
    pub nodes: BTreeSet<String>,
}

impl CommonText {
    /// The first texts, and how many more there are.
    pub fn shown(&self) -> String {
        let shown: Vec<&str> = self.texts.iter().take(TEXTS).map(String::as_str).collect();
        match self.texts.len().saturating_sub(TEXTS) {
            0 => shown.join(" | "),
            more => format!("{} | and {more} more like it", shown.join(" | ")),
        }
    }
}

/// The nodes' texts, merged by [`shape()`].
#[derive(Debug, Default)]
pub struct Texts(BTreeMap<String, CommonText>);

impl Texts {
    pub fn add(&mut self, node: &str, text: &str) {
        self.add_as(shape(text), node, text);
    }

    /// As [`Self::add`], with a shape that the caller chooses.
    pub fn add_as(&mut self, shape: String, node: &str, text: &str) {
        let empty = || CommonText { texts: BTreeSet::new(), nodes: BTreeSet::new() };
        let shared = self.0.entry(shape).or_insert_with(empty);
        shared.texts.insert(text.to_owned());
        shared.nodes.insert(node.to_owned());
    }

    /// Sorted: the texts of most nodes first.
    pub fn sorted(self) -> Vec<CommonText> {
        let mut all: Vec<CommonText> = self.0.into_values().collect();
        all.sort_by_key(|shared| std::cmp::Reverse(shared.nodes.len()));
        all
    }
}

/// Several nodes' values as text: `1 to 40` for numbers, else the first values.
pub fn spread(values: &BTreeSet<String>) -> String {
    let numbers: Option<BTreeSet<u64>> = values.iter().map(|value| value.parse().ok()).collect();
    if let Some(numbers) = numbers.filter(|numbers| numbers.len() > 1)
        && let Some((first, last)) = numbers.first().zip(numbers.last())
    {
        return format!("{first} to {last}");
    }
    let shown: Vec<&str> = values.iter().take(TEXTS).map(String::as_str).collect();
    match values.len().saturating_sub(TEXTS) {
        0 => shown.join(" | "),
        more => format!("{} | and {more} more", shown.join(" | ")),
    }
}

/// A text without the parts that differ from node to node: words with digits, names of objects and
/// of files, and quoted parts.
pub fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut is_quoted = false;
    for word in text.split_whitespace() {
        let quotes = word.matches('"').count();
        let differs = is_quoted
            || quotes > 0
            || word.contains(|c: char| c.is_ascii_digit() || "/@".contains(c));
        is_quoted ^= quotes % 2 == 1;
        let part = if differs { "*" } else { word };
        // A list of three addresses is like one of four.
        if part != "*" || !shape.ends_with("* ") {
            shape.push_str(part);
            shape.push(' ');
        }
    }
    shape
}

/// `a, b, c`, or `37 nodes: a, b, c, …`.
pub fn node_names<'a>(nodes: impl ExactSizeIterator<Item = &'a String>) -> String {
    let number = nodes.len();
    let names: Vec<&str> = nodes.take(NAMES).map(String::as_str).collect();
    let names = names.join(", ");
    match number {
        1 => names,
        2..=NAMES => format!("{number} nodes: {names}"),
        _ => format!("{number} nodes: {names}, …"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_differ_in_values_alone_are_one() {
        let mut texts = Texts::default();
        for node in 0..40 {
            texts.add(&format!("n{node:02}"), &format!("the route to 10.1.{node}.0/24 is missing"));
        }
        texts.add("n07", "ip_forward is off");
        let sorted = texts.sorted();
        let [many, one] = &sorted[..] else { panic!("{sorted:#?}") };
        assert_eq!((many.nodes.len(), one.nodes.len()), (40, 1));
        assert!(many.shown().contains("and 37 more like it"), "{}", many.shown());
        assert_eq!(node_names(many.nodes.iter()), "40 nodes: n00, n01, n02, n03, n04, …");
        assert_eq!(node_names(one.nodes.iter()), "n07");
    }

    #[test]
    fn values_of_many_nodes_are_a_range_or_a_list() {
        let cases: [(&[&str], &str); 5] = [
            (&["7"], "7"),
            (&["10", "9", "200"], "9 to 200"),
            (&["a", "b"], "a | b"),
            (&["1", "b"], "1 | b"),
            (&["a", "b", "c", "d", "e"], "a | b | c | and 2 more"),
        ];
        for (values, expected) in cases {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            assert_eq!(spread(&values), expected, "{values:?}");
        }
    }

    #[test]
    fn texts_with_other_words_are_not() {
        let cases = [
            ("pod a/b has no record", "pod c/d has no record", true),
            ("pods a/b, a/c have none", "pods a/b have none", true),
            ("interface \"veth x\" is new", "interface \"veth y z\" is new", true),
            ("the agent runs", "the agent does not run", false),
            ("3 rules are missing", "3 rules are left", false),
        ];
        for (one, other, are_equal) in cases {
            assert_eq!(shape(one) == shape(other), are_equal, "{one} {other}");
        }
    }

    proptest! {
        #[test]
        fn no_node_is_lost(added in prop::collection::vec(("[a-c]", "[a-b1-9 ]{0,6}"), 0..20)) {
            let mut texts = Texts::default();
            added.iter().for_each(|(node, text)| texts.add(node, text));
            let sorted = texts.sorted();
            for (node, text) in added {
                let has = |shared: &CommonText| {
                    shared.texts.contains(&text) && shared.nodes.contains(&node)
                };
                prop_assert!(sorted.iter().any(has));
            }
        }
    }
}
