//! Label and field selectors, as far as the agent and kubectl use them. Any other selector is an
//! error, as with a real server.

use serde_json::Value;

/// What a request selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    NoLabel(String),
    Label(String, String),
    /// A pod has this address.
    PodIp(String),
    Namespace(String),
    Field {
        path: Vec<String>,
        value: String,
        equal: bool,
    },
}

/// The fields that a real server indexes for selectors.
const FIELDS: [&str; 5] =
    ["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.nodeName", "status.phase"];

impl Selector {
    /// Parses `labelSelector` and `fieldSelector`, and adds the path's namespace.
    pub fn parse(
        labels: Option<&str>,
        fields: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<Self, String> {
        let words = |text: Option<&str>| -> Vec<String> {
            let words = text.unwrap_or_default().split(',').filter(|word| !word.is_empty());
            words.map(str::to_owned).collect()
        };
        let label = |word: &String| match (word.strip_prefix('!'), word.split_once('=')) {
            (Some(name), _) => Ok(Term::NoLabel(name.to_owned())),
            (None, Some((name, value))) => Ok(Term::Label(name.to_owned(), value.to_owned())),
            (None, None) => Err(format!("label selector {word:?} is beyond this server")),
        };
        let field = |word: &String| {
            let (path, value, equal) = match word.split_once("!=") {
                Some((path, value)) => (path, value, false),
                None => {
                    let (path, value) = word.split_once('=').ok_or("a field selector without =")?;
                    (path, value.trim_start_matches('='), true)
                }
            };
            if path == "status.podIP" && equal {
                return Ok(Term::PodIp(value.to_owned()));
            }
            if !FIELDS.contains(&path) {
                return Err(format!("field label not supported: {path}"));
            }
            Ok(Term::Field {
                path: path.split('.').map(str::to_owned).collect(),
                value: value.to_owned(),
                equal,
            })
        };
        let mut terms = words(labels).iter().map(label).collect::<Result<Vec<_>, _>>()?;
        for word in words(fields) {
            terms.push(field(&word)?);
        }
        terms.extend(namespace.map(|namespace| Term::Namespace(namespace.to_owned())));
        Ok(Self { terms })
    }

    /// Whether it selects `object`.
    pub fn selects(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| match term {
            Term::NoLabel(name) => object["metadata"]["labels"].get(name).is_none(),
            Term::Label(name, value) => object["metadata"]["labels"][name] == value.as_str(),
            Term::PodIp(ip) => {
                let ips = object["status"]["podIPs"].as_array().into_iter().flatten();
                ips.into_iter().any(|of| of["ip"] == ip.as_str())
            }
            Term::Namespace(namespace) => object["metadata"]["namespace"] == namespace.as_str(),
            Term::Field { path, value, equal } => {
                let found = path.iter().fold(object, |at, part| &at[part.as_str()]);
                (found.as_str().unwrap_or_default() == value) == *equal
            }
        })
    }
}
