//! What nft keeps beside tables, chains, rules, sets and elements: type, length, value.

/// Appends a value. It has at most 255 bytes.
pub(crate) fn tlv(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    assert!(value.len() <= usize::from(u8::MAX), "user data of {} bytes", value.len());
    out.extend_from_slice(&[kind, value.len() as u8]);
    out.extend_from_slice(value);
}

/// The first value of this kind.
pub(crate) fn find_tlv(mut data: &[u8], kind: u8) -> Option<&[u8]> {
    while let [found, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *found == kind {
            return Some(value);
        }
        data = &rest[usize::from(*length)..];
    }
    None
}

/// A comment as user data; its kind is 0 for everything but sets.
pub(crate) fn comment(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    tlv(&mut out, 0, &with_nul(text));
    out
}

/// The comment in user data of anything but a set.
pub(crate) fn comment_in(user_data: &[u8]) -> Option<&str> {
    let text = find_tlv(user_data, 0)?;
    std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok()
}

/// A comment as nft stores it.
pub(crate) fn with_nul(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// Numbers, each under its index.
pub(crate) fn numbers(numbers: &[u32]) -> Vec<u8> {
    let mut data = Vec::new();
    for (n, number) in numbers.iter().enumerate() {
        tlv(&mut data, n as u8, &number.to_ne_bytes());
    }
    data
}

/// nft's description of an expression: its kind, and what identifies it.
pub(crate) fn expression(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    tlv(&mut out, 0, &kind.to_ne_bytes());
    tlv(&mut out, 1, data);
    out
}

/// The text in a form that a comment can have: nft takes 128 bytes, the last of them zero, and
/// cannot write a quote in a comment. A name with a quote would make the whole host's `nft list`
/// unreadable to nft. A longer text ends with its hash in place of what is cut off, so that it
/// differs from other long texts.
pub fn comment_text(text: &str) -> String {
    let harmless = |c: char| if c == '"' || c.is_control() { '?' } else { c };
    let mut text: String = text.chars().map(harmless).collect();
    if text.len() > MOST_BYTES {
        let end = format!("~{:016x}", hash(text.as_bytes()));
        text.truncate(text.floor_char_boundary(MOST_BYTES - end.len()));
        text += &end;
    }
    text
}

/// The most bytes of a comment.
const MOST_BYTES: usize = 127;

/// FNV-1a, the same in every version of this program, because a restarted agent reads comments
/// back. It withstands no attack.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_what_nft_can_read() {
        assert_eq!(comment_text("default/web:http"), "default/web:http");
        assert_eq!(comment_text("a\"b\nc\u{7f}"), "a?b?c?");
        assert_eq!(comment_text(&"a".repeat(127)), "a".repeat(127));
        // The hash is pinned: another version of the agent must find the same comment.
        assert_eq!(comment_text(&"ä".repeat(100)), format!("{}~195b25545f8c9e85", "ä".repeat(55)));
        let long = |end| comment_text(&format!("{}{end}", "n".repeat(200)));
        assert_ne!(long("a"), long("b"));
    }
}
