//! One rule: a line of statements.

use anyhow::{Result, bail, ensure};

use super::syntax::{Expr, Field, RightSide, Statement, Verdict, Version};
use super::token::{Cursor, Token};
use super::value::{Atom, NftType, Pattern};

/// Reads rules in a table of this family.
pub struct RuleReader<'a> {
    pub family: &'a str,
}

/// The verdict that begins with this word, if it is one.
pub fn verdict(word: &str, words: &mut Cursor) -> Result<Option<Verdict>> {
    Ok(Some(match word {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(words.text()?),
        "goto" => Verdict::Goto(words.text()?),
        "reject" => {
            if words.take("with") {
                words.expect("tcp")?;
                words.expect("reset")?;
            }
            Verdict::Reject
        }
        _ => return Ok(None),
    }))
}

impl RuleReader<'_> {
    /// The rule that begins here, up to the line's end.
    pub fn rule(&self, words: &mut Cursor) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while !words.is_end() {
            if words.take("comment") {
                words.text()?;
                ensure!(words.is_end(), "a comment ends a rule, {}", words.place());
            } else {
                statements.push(self.statement(words)?);
            }
        }
        Ok(statements)
    }

    fn statement(&self, words: &mut Cursor) -> Result<Statement> {
        let Some(Token::Word(first)) = words.peek().cloned() else {
            bail!("no statement, {}", words.place());
        };
        let known = ["accept", "drop", "return", "jump", "goto", "reject"];
        if known.contains(&&*first) {
            words.next();
            let verdict = verdict(&first, words)?;
            return verdict.map(Statement::Verdict).ok_or_else(|| anyhow::anyhow!("{first}"));
        }
        Ok(match &*first {
            "counter" => {
                words.next();
                Statement::Counter
            }
            "masquerade" => {
                words.next();
                words.take("fully-random");
                Statement::Masquerade
            }
            "dnat" => self.dnat(words)?,
            "update" | "delete" => self.change(words)?,
            "add" => self.count(words)?,
            _ => self.match_or_set(words)?,
        })
    }

    fn dnat(&self, words: &mut Cursor) -> Result<Statement> {
        words.expect("dnat")?;
        words.expect(self.family)?;
        words.expect("to")?;
        let to = self.mapped(words)?;
        ensure!(matches!(to, Expr::Map(..)), "dnat to something else than a map's value");
        Ok(Statement::Dnat { to })
    }

    /// `update @map { key timeout 1s : data }`, the same with `delete`,
    /// `update @set { key timeout 1s limit rate 3/hour burst 5 packets }`, or
    /// `update @set { key timeout 1d counter }`.
    fn change(&self, words: &mut Cursor) -> Result<Statement> {
        let update = words.take("update") || {
            words.expect("delete")?;
            false
        };
        let map = name(words)?;
        words.expect("{")?;
        let key = self.concat(words)?;
        if words.take("timeout") {
            words.text()?;
        }
        if update && words.take("counter") {
            words.expect("}")?;
            return Ok(Statement::Count { set: map, key });
        }
        if update && words.take("limit") {
            words.expect("rate")?;
            words.text()?;
            words.expect("burst")?;
            words.text()?;
            words.expect("packets")?;
            words.expect("}")?;
            return Ok(Statement::Limit { set: map, key });
        }
        words.expect(":")?;
        let data = self.concat(words)?;
        words.expect("}")?;
        Ok(if update {
            Statement::Update { map, key, data }
        } else {
            Statement::Delete { map, key }
        })
    }

    /// `add @set { key timeout 1s counter }`.
    fn count(&self, words: &mut Cursor) -> Result<Statement> {
        words.expect("add")?;
        let set = name(words)?;
        words.expect("{")?;
        let key = self.concat(words)?;
        words.expect("timeout")?;
        words.text()?;
        words.expect("counter")?;
        words.expect("}")?;
        Ok(Statement::Count { set, key })
    }

    fn match_or_set(&self, words: &mut Cursor) -> Result<Statement> {
        let left = self.concat(words)?;
        if words.take("set") {
            let Expr::Field(field @ (Field::Mark | Field::Priority)) = left else {
                bail!("{left:?} cannot be set here");
            };
            let value = self.value(field.kind(), words)?;
            return Ok(Statement::Set { field, value });
        }
        if words.take("vmap") {
            let map = name(words)?;
            return Ok(Statement::VerdictMap { key: left, map });
        }
        self.comparison(left, words)
    }

    fn comparison(&self, left: Expr, words: &mut Cursor) -> Result<Statement> {
        let negated = words.take("!=");
        if matches!(words.peek(), Some(Token::Word(word)) if word.starts_with('@')) {
            let right = RightSide::Set(name(words)?);
            return Ok(Statement::Match { left, negated, right });
        }
        let output = negated || words.take("==");
        let [kind] = left.kinds()[..] else {
            bail!("a concatenation is compared, {}", words.place());
        };
        let pattern = kind.pattern(&words.text()?)?;
        let right = match (kind, pattern) {
            (NftType::Status | NftType::State, Pattern::Is(Atom::Number(bits))) if !output => {
                RightSide::Bits(bits)
            }
            (NftType::Status, pattern) if matches!(left, Expr::And(..)) => {
                RightSide::Pattern(pattern)
            }
            (NftType::Status | NftType::State, _) => {
                bail!("bits compared as a whole are not known")
            }
            (_, pattern) => RightSide::Pattern(pattern),
        };
        Ok(Statement::Match { left, negated, right })
    }

    /// A constant, or an expression, that a field of this type is set to.
    fn value(&self, kind: NftType, words: &mut Cursor) -> Result<Expr> {
        if let Some(Token::Word(word)) = words.peek()
            && let Ok(atom) = kind.atom(word)
        {
            words.next();
            return Ok(Expr::Constant(atom));
        }
        self.mapped(words)
    }

    fn mapped(&self, words: &mut Cursor) -> Result<Expr> {
        let key = self.concat(words)?;
        if words.take("map") {
            return Ok(Expr::Map(Box::new(key), name(words)?));
        }
        Ok(key)
    }

    /// A concatenation, or a single expression.
    pub fn concat(&self, words: &mut Cursor) -> Result<Expr> {
        let mut parts = vec![self.part(words)?];
        while words.take(".") {
            parts.push(self.part(words)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Concat(parts) })
    }

    /// An operand, and the bit operations on it.
    fn part(&self, words: &mut Cursor) -> Result<Expr> {
        let mut part = self.operand(words)?;
        loop {
            let and = words.take("&");
            if !and && !words.take("|") {
                return Ok(part);
            }
            let [kind] = part.kinds()[..] else {
                bail!("bits of a concatenation, {}", words.place());
            };
            let bits = kind.atom(&words.text()?)?.number()?;
            part = if and { Expr::And(part.into(), bits) } else { Expr::Or(part.into(), bits) };
        }
    }

    fn operand(&self, words: &mut Cursor) -> Result<Expr> {
        let first = words.text()?;
        match &*first {
            "iifname" => return Ok(Expr::Field(Field::InputInterface)),
            "oifname" => return Ok(Expr::Field(Field::OutputInterface)),
            "@th,64,128" => return Ok(Expr::Field(Field::NeighbourTarget)),
            "@th,104,8" => return Ok(Expr::Field(Field::TcpFlags)),
            _ => {}
        }
        let second = words.text()?;
        let field = match (&*first, &*second) {
            ("arp", "saddr") if self.family == "bridge" => match &*words.text()? {
                "ip" => Field::ArpSender,
                "ether" => Field::ArpSenderEther,
                other => bail!("arp saddr {other} is not known, {}", words.place()),
            },
            ("ether", "saddr") => Field::EtherSource,
            ("ether", "daddr") => Field::EtherDestination,
            ("ether", "type") => Field::FrameType,
            ("ip6", "hoplimit") => Field::HopLimit,
            ("meta", "length") => Field::Length,
            ("ct", direction @ ("original" | "reply")) => {
                let version = self.version(&words.text()?)?;
                words.expect("saddr")?;
                match direction {
                    "original" => Field::CtOriginalSource(version),
                    _ => Field::CtReplySource(version),
                }
            }
            (version, "saddr") => Field::Source(self.version(version)?),
            (version, "daddr") if version != "fib" => Field::Destination(self.version(version)?),
            ("icmpv6", "type") => Field::Icmpv6Type,
            ("meta", "protocol") => Field::EtherType,
            ("meta", "pkttype") => Field::PacketType,
            ("ct", "state") => Field::ConntrackState,
            ("meta", "l4proto") => Field::Protocol,
            ("meta", "mark") => Field::Mark,
            ("meta", "priority") => Field::Priority,
            ("th", "dport") => Field::Port,
            ("ct", "status") => Field::ConntrackStatus,
            ("ct", "mark") => Field::ConntrackMark,
            ("fib", "daddr") => {
                words.expect("type")?;
                Field::DestinationType
            }
            ("numgen", "random") => {
                words.expect("mod")?;
                return Ok(Expr::Random(words.text()?.parse()?));
            }
            _ => bail!("{first} {second} is not known, {}", words.place()),
        };
        Ok(Expr::Field(field))
    }

    /// The IP version of this header name. The table's packets must be able to have that header.
    fn version(&self, header: &str) -> Result<Version> {
        let both = ["inet", "bridge"].contains(&self.family);
        match header {
            "ip" if both || self.family == "ip" => Ok(Version::V4),
            "ip6" if both || self.family == "ip6" => Ok(Version::V6),
            _ => bail!("a header {header} in a table {}", self.family),
        }
    }
}

fn name(words: &mut Cursor) -> Result<String> {
    let word = words.text()?;
    match word.strip_prefix('@') {
        Some(name) => Ok(name.to_owned()),
        None => bail!("{word} is no set's name, {}", words.place()),
    }
}
