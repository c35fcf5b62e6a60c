//! Text that others wrote, made safe to print.

use std::fmt::{self, Write};

/// Prints a text on one line. Characters that control a terminal (control characters, marks that
/// change the writing direction) are escaped as in a Rust string, since names in manifests, and of
/// pods and interfaces, are whatever somebody wrote.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return f.write_str(self.0);
        }
        for character in self.0.chars() {
            if is_printable(character) {
                f.write_char(character)?;
            } else {
                write!(f, "{}", character.escape_debug())?;
            }
        }
        Ok(())
    }
}

/// Makes several lines printable. Tabs stay: they indent a ruleset.
pub fn printable_lines(text: &str) -> String {
    text.split_inclusive(['\n', '\t'])
        .map(|part| match part.strip_suffix(['\n', '\t']) {
            Some(before) => format!("{}{}", Printable(before), &part[before.len()..]),
            None => Printable(part).to_string(),
        })
        .collect()
}

/// Makes JSON printable: escapes such characters as in JSON. Outside strings only line feeds occur,
/// which stay.
pub fn printable_json(json: &str) -> String {
    if json.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || is_printable(character) {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").expect("a string takes any text");
        }
    }
    text
}

fn is_printable(character: char) -> bool {
    // `escape_debug` escapes these three for another reason: they have a meaning in a string.
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let cases = [
            ("plain", "default/web:http", "default/web:http"),
            ("quotes and backslashes", r#"a "b" 'c' \d"#, r#"a "b" 'c' \d"#),
            ("letters of any script", "größe 東京", "größe 東京"),
            ("an escape sequence", "web\u{1b}[2J", "web\\u{1b}[2J"),
            ("a line of its own", "web\n=> forwarded", "web\\n=> forwarded"),
            ("back to the line's beginning", "web\rx", "web\\rx"),
            ("C1", "web\u{9b}2J\u{7f}", "web\\u{9b}2J\\u{7f}"),
            ("another direction", "web\u{202e}x", "web\\u{202e}x"),
        ];
        for (name, text, expected) in cases {
            assert_eq!(Printable(text).to_string(), expected, "{name}");
        }
        assert_eq!(printable_lines("a\u{1b}\n\tb\r\n"), "a\\u{1b}\n\tb\\r\n");
    }

    #[test]
    fn printable_json_parses_to_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": ["\u{202e}", "\u{e0001}\n", "ü \"\\"] });
        let text = printable_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!text.chars().any(|c| c != '\n' && !is_printable(c)), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }
}
