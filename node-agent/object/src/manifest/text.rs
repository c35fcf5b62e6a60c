//! Splits a YAML file into its documents.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct YamlDocument<'a> {
    /// Its number in the file, from 1.
    pub(super) number: usize,
    /// Its first line in the file, from 1.
    pub(super) line: usize,
    /// Its text, with the `---` before it and without the marker that ends it.
    pub(super) text: &'a str,
}

/// The documents of a YAML file that are not empty.
///
/// They are split before any of them is parsed, so that a broken one does not affect the others.
/// This is exact: inside a document, even in quotes, YAML allows neither `---` nor `...` at the
/// start of a line.
pub(super) fn documents(text: &str) -> Vec<YamlDocument<'_>> {
    let mut documents = Vec::new();
    let mut begin = 0;
    let mut begin_line = 1;
    let mut at = 0;
    let mut line_number = 0;
    // A byte order mark is not part of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for line in text.split_inclusive('\n') {
        line_number += 1;
        let end = at + line.len();
        let opens = is_marker(line, "---");
        let closes = is_marker(line, "...");
        if opens || closes {
            push(&mut documents, &text[begin..at], begin_line);
            begin = if opens { at } else { end };
            begin_line = if opens { line_number } else { line_number + 1 };
        }
        at = end;
    }
    push(&mut documents, &text[begin..], begin_line);
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    let rest = line.strip_prefix(marker);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// Adds a document, unless it contains only comments and directives.
fn push<'a>(documents: &mut Vec<YamlDocument<'a>>, text: &'a str, line: usize) {
    let has_content = |line: &str| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        !line.is_empty() && !line.starts_with(['#', '%'])
    };
    if text.lines().any(has_content) {
        documents.push(YamlDocument { number: documents.len() + 1, line, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_a_file() {
        type FileCase<'a> = (&'a str, &'a str, &'a [(usize, &'a str)]);
        let cases: [FileCase<'_>; 13] = [
            ("nothing", "", &[]),
            ("comments", "# a\n\n# b\n", &[]),
            ("one", "a: 1\n", &[(1, "a: 1\n")]),
            ("one without a last line feed", "a: 1", &[(1, "a: 1")]),
            ("marker first", "---\na: 1\n", &[(1, "---\na: 1\n")]),
            ("two", "a: 1\n---\nb: 2\n", &[(1, "a: 1\n"), (2, "---\nb: 2\n")]),
            ("on the marker's line", "--- {a: 1}\n", &[(1, "--- {a: 1}\n")]),
            ("empty ones between", "---\n---\n# c\n---\na: 1\n---\n", &[(4, "---\na: 1\n")]),
            ("closed", "a: 1\n...\nb: 2\n", &[(1, "a: 1\n"), (3, "b: 2\n")]),
            ("directive", "%YAML 1.2\n---\na: 1\n", &[(2, "---\na: 1\n")]),
            (
                "carriage returns",
                "a: 1\r\n---\r\nb: 2\r\n",
                &[(1, "a: 1\r\n"), (2, "---\r\nb: 2\r\n")],
            ),
            ("not a marker", "a: |\n  ---\n  x\n----: 1\n", &[(1, "a: |\n  ---\n  x\n----: 1\n")]),
            ("byte order mark", "\u{feff}---\na: 1\n", &[(1, "---\na: 1\n")]),
        ];
        for (name, text, expected) in cases {
            let found: Vec<_> =
                documents(text).iter().map(|document| (document.line, document.text)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn documents_are_numbered_without_the_empty_ones() {
        let numbers: Vec<_> =
            documents("---\n---\na: 1\n---\nb: 2\n").iter().map(|d| d.number).collect();
        assert_eq!(numbers, [1, 2]);
    }
}
