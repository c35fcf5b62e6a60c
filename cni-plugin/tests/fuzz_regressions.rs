//! Inputs that the fuzzers found, one per line, in hexadecimal, in `fuzz/regressions`. An input
//! that breaks something is added there.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use denizen_cni::{Environment, understand};

/// The inputs in `text`.
fn inputs(text: &str) -> impl Iterator<Item = Vec<u8>> {
    text.lines().map(|line| {
        let digits = line.as_bytes().chunks(2);
        digits
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    })
}

#[test]
fn every_standard_input_is_understood_or_refused() {
    let (mut understood, mut refused) = (0, 0);
    for input in inputs(include_str!("../fuzz/regressions/stdin.hex")) {
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
            let environment = Environment {
                command: Some(command.into()),
                container_id: Some("3f1c".into()),
                netns: Some("/run/netns/a".into()),
                if_name: Some("eth0".into()),
                args: None,
            };
            match understand(&environment, &input) {
                Ok(()) => understood += 1,
                Err(object) => {
                    refused += 1;
                    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
                    assert!(object["code"].is_u64() && object["msg"].is_string(), "{object}");
                }
            }
        }
    }
    assert!(
        understood > 50 && refused > 100,
        "{understood} and {refused}: the inputs are worth something"
    );
}

#[test]
fn both_ways_to_read_a_state_file_agree() {
    let mut read = 0;
    for text in inputs(include_str!("../fuzz/regressions/state.hex")) {
        denizen_state::fuzzing::state_file(&text);
        read += 1;
    }
    assert!(read > 50, "{read}");
}

/// The binary behaves as the library. This also makes cargo build the binary for other tests.
#[test]
fn the_binary_refuses_what_the_library_refuses() {
    #[expect(clippy::disallowed_methods, reason = "the test runs the binary")]
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_denizen"))
        .env_clear()
        .env("CNI_COMMAND", "NONE")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let environment = Environment { command: Some("NONE".into()), ..Environment::default() };
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        understand(&environment, b"").unwrap_err()
    );
}
