//! Rules of any owner as text, close to nft's own. An expression that is not understood appears by
//! its name in the kernel: the text is for a person who looks for the rule.

use std::collections::BTreeMap;
use std::net::IpAddr;

use denizen_netlink::Attributes;

use crate::bytes::read_address;
use crate::encode::VERDICT_REGISTER;
use crate::expression_view::{Decision, ExpressionView};
use crate::field::{Field, Load, write_value};
use denizen_packet::Family;

/// Fields that are printed as nft does. Others have a name below, or are printed as numbers.
const FIELDS: [Field; 31] = [
    Field::EtherSource,
    Field::EtherDestination,
    Field::FrameType,
    Field::ArpSenderEther,
    Field::NeighbourTarget,
    Field::HopLimit,
    Field::Length,
    Field::OriginalSource(Family::V4),
    Field::OriginalSource(Family::V6),
    Field::Source(Family::V4),
    Field::Destination(Family::V4),
    Field::Source(Family::V6),
    Field::Destination(Family::V6),
    Field::Protocol,
    Field::DestinationPort,
    Field::InputInterface,
    Field::OutputInterface,
    Field::InputKind,
    Field::EtherType,
    Field::IpFamily,
    Field::SocketUser,
    Field::SocketGroup,
    Field::PacketType,
    Field::Mark,
    Field::Priority,
    Field::ConnectionState,
    Field::ConnectionStatus,
    Field::ConnectionMark,
    Field::DestinationType,
    Field::AnswerSource(Family::V4),
    Field::AnswerSource(Family::V6),
];

/// Names of `enum nft_meta_keys` that are not among [`FIELDS`].
const META: [(u32, &str); 5] =
    [(4, "iif"), (5, "oif"), (8, "meta iiftype"), (12, "meta nftrace"), (17, "meta iifgroup")];

/// What a register holds.
#[derive(Debug, Clone)]
struct Loaded {
    text: String,
    field: Option<Field>,
}

/// What the registers hold, by their first 32-bit word.
#[derive(Default)]
struct Registers(BTreeMap<u32, Loaded>);

/// What a rule with these expressions matches and does.
pub(crate) fn rule_text<'a>(expressions: impl Iterator<Item = ExpressionView<'a>>) -> String {
    let mut registers = Registers::default();
    let texts = expressions.filter_map(|expression| registers.text(&expression));
    texts.collect::<Vec<_>>().join(" ")
}

/// The first word of a register: 1 to 4 have four words each, 8 and above one.
fn word(register: Option<u32>) -> u32 {
    match register.unwrap_or_default() {
        register @ 1..=4 => (register - 1) * 4,
        register => register.saturating_sub(8),
    }
}

impl Registers {
    /// The expression's text, if it has one of its own.
    fn text(&mut self, expression: &ExpressionView<'_>) -> Option<String> {
        let data = expression.data();
        match expression.name() {
            "meta" | "ct" | "payload" | "fib" => self.load(expression.name(), data),
            "bitwise" => {
                let loaded = self.0.get_mut(&word(data.find_u32(2)))?;
                for (kind, operator, neutral) in [(4, '&', 0xff), (5, '^', 0)] {
                    let value = data.nested(kind).find(1).unwrap_or_default();
                    if value.iter().any(|byte| *byte != neutral) {
                        let value = value_text(loaded.field, value);
                        loaded.text += &format!(" {operator} {value}");
                    }
                }
                None
            }
            "numgen" => {
                let below = data.find_u32(2).unwrap_or_default();
                let text = format!("numgen random mod {below}");
                self.put(data.find_u32(1), Loaded { text, field: None });
                None
            }
            "immediate" => match decision(expression) {
                Some(text) => Some(text),
                None => {
                    let value = data.nested(2).find(1).map(hex).unwrap_or_default();
                    self.put(data.find_u32(1), Loaded { text: value, field: None });
                    None
                }
            },
            "cmp" => Some(self.compare(data)),
            "lookup" => Some(self.lookup(data)),
            "counter" => None,
            "dynset" => {
                let operation = data.find_u32(3).unwrap_or_default() as usize;
                let operation = ["add", "update", "delete"].get(operation).unwrap_or(&"?");
                Some(format!("{operation} @{}", data.find_str(1).unwrap_or_default()))
            }
            "match" => Some(format!("xt match {}", data.find_str(1).unwrap_or_default())),
            "target" => Some(format!("xt target {}", data.find_str(1).unwrap_or_default())),
            "masq" => Some("masquerade".to_owned()),
            "nat" => Some(self.nat(data)),
            "redir" => {
                let port = self.held(data.find_u32(1)).text;
                Some(format!("redirect to :{}", port_text(&port).unwrap_or(port)))
            }
            "log" => Some(
                data.find_str(2).map_or("log".to_owned(), |text| format!("log prefix \"{text}\"")),
            ),
            name => Some(name.to_owned()),
        }
    }

    fn put(&mut self, register: Option<u32>, loaded: Loaded) {
        self.0.insert(word(register), loaded);
    }

    fn held(&self, register: Option<u32>) -> Loaded {
        let unknown = || Loaded { text: "?".to_owned(), field: None };
        self.0.get(&word(register)).cloned().unwrap_or_else(unknown)
    }

    fn load(&mut self, name: &str, data: Attributes<'_>) -> Option<String> {
        let number = |kind| data.find_u32(kind).unwrap_or_default();
        let (load, into) = match name {
            "payload" => (Load::Payload(number(2), number(3)), data.find_u32(1)),
            "ct" => {
                let direction = data.find(3).and_then(<[u8]>::first).copied();
                (Load::Connection(number(2), direction), data.find_u32(1))
            }
            "fib" => (Load::Route(number(2), number(3)), data.find_u32(1)),
            _ => (Load::Meta(number(2)), data.find_u32(1)),
        };
        // For a prefix that ends at a byte boundary, only its bytes of the address are loaded.
        let is_it = |field: &&Field| {
            let size = number(4) as usize;
            let is_part = field.address().is_some() && size < field.size();
            field.load() == load && (name != "payload" || is_part || field.size() == size)
        };
        let field = FIELDS.iter().find(is_it).copied();
        let text = match (field, load) {
            (Some(field), _) => field.to_string(),
            (None, Load::Meta(key)) => named(&META, key, "meta"),
            (None, Load::Connection(key, _)) => named(&[(1, "ct direction")], key, "ct"),
            (None, Load::Payload(2, 0)) if number(4) == 2 => "th sport".to_owned(),
            (None, Load::Payload(base, offset)) => {
                let header = ["ll", "nh", "th", "ih"].get(base as usize).unwrap_or(&"?");
                format!("@{header},{},{}", offset * 8, number(4) * 8)
            }
            (None, Load::Route(..) | Load::Random(_)) => name.to_owned(),
        };
        if into.is_some() {
            self.put(into, Loaded { text, field });
            return None;
        }
        // The expression sets the field, from the register that this attribute names.
        let source = if name == "ct" { data.find_u32(4) } else { data.find_u32(3) };
        (name != "payload").then(|| format!("{text} set {}", self.held(source).text))
    }

    fn compare(&self, data: Attributes<'_>) -> String {
        let Loaded { text, field } = self.held(data.find_u32(1));
        let operator = ["", "!= ", "< ", "<= ", "> ", ">= "];
        let operator = operator.get(data.find_u32(2).unwrap_or_default() as usize).unwrap_or(&"? ");
        let value = data.nested(3).find(1).unwrap_or_default();
        format!("{text} {operator}{}", value_text(field, value))
    }

    /// A key may be of several fields, in the registers from the first one on.
    fn lookup(&mut self, data: Attributes<'_>) -> String {
        let fields = self.0.split_off(&word(data.find_u32(2)));
        let fields: Vec<String> = fields.into_values().map(|loaded| loaded.text).collect();
        let key = fields.join(" . ");
        let set = data.find_str(1).unwrap_or_default();
        let not = if data.find_u32(5).is_some_and(|flags| flags & 1 != 0) { "!= " } else { "" };
        match data.find_u32(3) {
            Some(VERDICT_REGISTER) => format!("{key} vmap @{set}"),
            Some(found) => {
                let text = format!("{key} map @{set}");
                self.put(Some(found), Loaded { text: "the map's value".to_owned(), field: None });
                text
            }
            None => format!("{key} {not}@{set}"),
        }
    }

    fn nat(&self, data: Attributes<'_>) -> String {
        let what = if data.find_u32(1) == Some(1) { "dnat" } else { "snat" };
        let address = data.find_u32(3).map(|_| self.held(data.find_u32(3)).text);
        let port = data.find_u32(5).map(|_| self.held(data.find_u32(5)).text);
        let address = address.map(|text| address_text(&text).unwrap_or(text));
        let port = port.map(|text| port_text(&text).unwrap_or(text));
        match (address, port) {
            (Some(address), Some(port)) if port != "?" => {
                format!("{what} to {address} port {port}")
            }
            (Some(address), _) => format!("{what} to {address}"),
            (None, Some(port)) => format!("{what} to port {port}"),
            (None, None) => what.to_owned(),
        }
    }
}

fn named(names: &[(u32, &str)], key: u32, what: &str) -> String {
    let name = names.iter().find(|(number, _)| *number == key);
    name.map_or_else(|| format!("{what} {key}"), |(_, name)| (*name).to_owned())
}

fn decision(expression: &ExpressionView<'_>) -> Option<String> {
    Some(match expression.decision()? {
        Decision::Continue => "continue".to_owned(),
        Decision::Accept => "accept".to_owned(),
        Decision::Drop => "drop".to_owned(),
        Decision::Return => "return".to_owned(),
        Decision::Jump(chain) => format!("jump {chain}"),
        Decision::Goto(chain) => format!("goto {chain}"),
        Decision::Other => return None,
    })
}

/// A value of the field as nft writes it, if it has the field's length; otherwise the bytes.
fn value_text(field: Option<Field>, value: &[u8]) -> String {
    struct Value<'a>(Field, &'a [u8]);
    impl std::fmt::Display for Value<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write_value(self.0, f, self.1)
        }
    }
    match field {
        Some(field) if field.size() == value.len() => Value(field, value).to_string(),
        Some(field) if field.address().is_some() && value.len() < field.size() => {
            let padded = [value, &vec![0; field.size() - value.len()]].concat();
            format!("{}/{}", Value(field, &padded), value.len() * 8)
        }
        // The beginning of a name.
        Some(Field::InputInterface | Field::OutputInterface | Field::InputKind) => {
            format!("\"{}*\"", String::from_utf8_lossy(value))
        }
        Some(_) | None => hex(value),
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn address_text(text: &str) -> Option<String> {
    let bytes = unhex(text)?;
    let version = match bytes.len() {
        4 => Family::V4,
        16 => Family::V6,
        _ => return None,
    };
    read_address(version, &bytes).as_ref().map(IpAddr::to_string)
}

fn port_text(text: &str) -> Option<String> {
    let bytes = unhex(text)?;
    Some(u16::from_be_bytes(*bytes.first_chunk()?).to_string())
}
