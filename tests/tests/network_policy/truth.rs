//! Truth tables in the words of the table of cases: which pods cannot reach which.

use anyhow::{Result, ensure};

/// The pairs of pods, sender and receiver, as `namespace/name`, that a text denies.
///
/// `X,Z -> x/a; x/a -> * but y/a`: no pod of namespaces x and z reaches pod a of x, and that one
/// reaches none but pod a of y. What comes after `but` is an exception from `*`. A pod itself is
/// never denied. `none` denies nothing.
#[derive(Debug, Clone)]
pub struct Denied(Vec<Clause>);

#[derive(Debug, Clone)]
struct Clause {
    from: Vec<String>,
    to: Vec<String>,
    but: Vec<String>,
}

impl Denied {
    /// Reads such a text.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        text.split("; ").map(Clause::parse).collect::<Result<_>>().map(Self)
    }

    /// Whether a packet between these two is denied.
    pub fn has(&self, from: &str, to: &str) -> bool {
        from != to && self.0.iter().any(|clause| clause.has(from, to))
    }
}

impl Clause {
    fn parse(text: &str) -> Result<Self> {
        let (clause, but) = text.split_once(" but ").unwrap_or((text, ""));
        let Some((from, to)) = clause.split_once(" -> ") else {
            anyhow::bail!("{text}: nobody is denied");
        };
        let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let but = if but.is_empty() { Vec::new() } else { words(but) };
        ensure!(but.is_empty() || (from == "*") != (to == "*"), "{text}: except from which side?");
        Ok(Self { from: words(from), to: words(to), but })
    }

    fn has(&self, from: &str, to: &str) -> bool {
        let all = |side: &[String]| side == ["*"];
        let is_one = |side: &[String], pod| all(side) || side.iter().any(|word| names(word, pod));
        let is_exception = |pod| self.but.iter().any(|word| names(word, pod));
        is_one(&self.from, from)
            && is_one(&self.to, to)
            && !(all(&self.from) && is_exception(from))
            && !(all(&self.to) && is_exception(to))
    }
}

/// `X` names all pods of namespace x, `x/a` one pod.
fn names(word: &str, pod: &str) -> bool {
    let namespace = pod.split('/').next().unwrap_or_default();
    word == pod || word == namespace.to_uppercase()
}

#[test]
fn the_notation() -> Result<()> {
    let denied = Denied::parse("X,Z -> x/a; y/b -> * but Z,x/a")?;
    for (from, to, expected) in [
        ("x/b", "x/a", true),
        ("z/c", "x/a", true),
        ("y/c", "x/a", false),
        ("x/a", "x/a", false),
        ("y/b", "x/a", false),
        ("y/b", "x/b", true),
        ("y/b", "z/b", false),
    ] {
        assert_eq!(denied.has(from, to), expected, "{from} -> {to}");
    }
    assert!(!Denied::parse("none")?.has("x/a", "x/b"));
    assert!(Denied::parse("x/a").is_err());
    Ok(())
}
