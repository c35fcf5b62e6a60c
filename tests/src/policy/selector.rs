//! Label selectors, evaluated as the API's documentation of `LabelSelector` says.

use serde::{Deserialize, Serialize};

use super::object::Labels;

/// `LabelSelector`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with exactly these values.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    /// Requirements that must all hold as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// An entry of `matchExpressions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For `In` and `NotIn`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// The selector of one label.
    pub fn label(key: &str, value: &str) -> Self {
        Self { match_labels: [(key.to_owned(), value.to_owned())].into(), ..Self::default() }
    }

    /// The selector of one requirement.
    pub fn requires(key: &str, operator: &str, values: &[&str]) -> Self {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = Requirement { key: key.into(), operator: operator.into(), values };
        Self { match_expressions: vec![requirement], ..Self::default() }
    }

    /// Whether it selects these labels; `None` if it cannot be understood.
    pub fn selects(&self, labels: &Labels) -> Option<bool> {
        let (holds, is_understood) = self.held(labels);
        is_understood.then_some(holds)
    }

    /// Whether all requirements that can be understood hold, and whether all can be understood.
    pub fn held(&self, labels: &Labels) -> (bool, bool) {
        let mut holds = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        let mut is_understood = true;
        for requirement in &self.match_expressions {
            match requirement.holds(labels) {
                Some(it) => holds &= it,
                None => is_understood = false,
            }
        }
        (holds, is_understood)
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> Option<bool> {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match (self.operator.as_str(), self.values.is_empty()) {
            ("In", false) => Some(listed),
            ("NotIn", false) => Some(!listed),
            ("Exists", true) => Some(value.is_some()),
            ("DoesNotExist", true) => Some(value.is_none()),
            // An unknown operator, missing values, or values for an operator that takes none.
            _ => None,
        }
    }
}
