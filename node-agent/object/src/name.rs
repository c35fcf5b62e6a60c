//! Names, as the API server checks them.

/// Maximum number of characters of a DNS name.
const LONGEST: usize = 253;

/// Whether it is a DNS name in lower case (RFC 1123), as names of pods are.
pub fn is_dns_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(inner) && has_plain_ends(label);
    name.len() <= LONGEST && name.split('.').all(label)
}

/// Whether it begins and ends with a letter or digit, if it is not empty.
pub(super) fn has_plain_ends(text: &str) -> bool {
    let ends = text.bytes().next().into_iter().chain(text.bytes().last());
    ends.into_iter().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_leave_their_place_in_a_path() {
        for name in ["web-1", "a", "0", "a.b-c.d"] {
            assert!(is_dns_name(name), "{name}");
        }
        for name in
            ["", ".", "..", "../secrets", "a/b", "a?b", "a%2fb", "A", "-a", "a-", "a..b", "ü"]
        {
            assert!(!is_dns_name(name), "{name}");
        }
        assert!(!is_dns_name(&"a".repeat(254)));
    }
}
