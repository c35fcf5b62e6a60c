//! Splits nft's text into words.

use anyhow::{Context, Result, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    Word(String),
    Quoted(String),
    /// A line's end, or a semicolon.
    LineEnd,
}

/// The words of a text. A comma or semicolon at a word's end is a word of its own; a colon is a
/// word only where it stands alone, since addresses and classes contain colons.
pub fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            rest = match rest.strip_prefix('"') {
                Some(quoted) => {
                    let (inside, after) =
                        quoted.split_once('"').context("a quote that never ends")?;
                    found.push(Token::Quoted(inside.to_owned()));
                    after
                }
                None => {
                    let end =
                        rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
                    let (word, after) = rest.split_at(end);
                    ensure!(!word.is_empty(), "no word in {rest}");
                    push(word, &mut found);
                    after
                }
            }
            .trim_start();
        }
        found.push(Token::LineEnd);
    }
    Ok(found)
}

fn push(word: &str, found: &mut Vec<Token>) {
    let last = word.chars().last().filter(|last| matches!(last, ',' | ';'));
    let word = last.map_or(word, |last| word.trim_end_matches(last));
    if !word.is_empty() {
        found.push(Token::Word(word.to_owned()));
    }
    match last {
        Some(';') => found.push(Token::LineEnd),
        Some(comma) => found.push(Token::Word(comma.to_string())),
        None => {}
    }
}

/// A place in the words.
pub struct Cursor {
    tokens: Vec<Token>,
    at: usize,
}

impl Cursor {
    pub fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, at: 0 }
    }

    pub fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    pub fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// The next word, whether quoted or not.
    pub fn text(&mut self) -> Result<String> {
        match self.next() {
            Some(Token::Word(word) | Token::Quoted(word)) => Ok(word),
            other => anyhow::bail!("{other:?} where a word was expected, {}", self.place()),
        }
    }

    /// Takes the next token if it is this word.
    pub fn take(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        self.at += usize::from(is);
        is
    }

    pub fn expect(&mut self, word: &str) -> Result<()> {
        ensure!(self.take(word), "{:?} where {word} was expected, {}", self.peek(), self.place());
        Ok(())
    }

    pub fn skip_ends(&mut self) {
        while self.peek() == Some(&Token::LineEnd) {
            self.at += 1;
        }
    }

    pub fn is_end(&self) -> bool {
        matches!(self.peek(), None | Some(Token::LineEnd))
    }

    /// The words around here, for errors.
    pub fn place(&self) -> String {
        let from = self.at.saturating_sub(8);
        let words = self.tokens[from..].iter().take(14).map(|token| match token {
            Token::Word(word) => word.clone(),
            Token::Quoted(word) => format!("{word:?}"),
            Token::LineEnd => "⏎".to_owned(),
        });
        format!("near: {}", words.collect::<Vec<_>>().join(" "))
    }
}
