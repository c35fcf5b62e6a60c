//! Any standard input, for every command: it is understood or refused, and never crashes.
#![no_main]

use denizen_cni::{Environment, understand};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
        let environment = Environment {
            command: Some(command.into()),
            container_id: Some("3f1c".into()),
            netns: Some("/run/netns/a".into()),
            if_name: Some("eth0".into()),
            args: Some("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0".into()),
        };
        if let Err(object) = understand(&environment, input) {
            assert!(object.contains("\"code\":"), "{object}");
        }
    }
});
