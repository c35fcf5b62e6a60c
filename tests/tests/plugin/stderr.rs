//! Standard error that cannot be written, as on a full disk: what is written to it is lost, and the
//! call goes on.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::process::{Command, Stdio};

use denizen_tests::node::cni::{PluginContext, Refusal, denizen, finish, give};
use serde_json::Value;

use super::wait::{agent, says, waiting};

/// A call that has something to say.
fn call(context: &PluginContext, command: &str, on_timeout: &str) -> Result<Value, Refusal> {
    let mut plugin = Command::new(denizen());
    plugin.env_clear().envs(context.variables(command, "c2"));
    plugin.stdin(Stdio::piped()).stdout(Stdio::piped());
    plugin.stderr(File::options().write(true).open("/dev/full").unwrap());
    let mut child = context.node.spawn(plugin);
    give(&mut child, waiting(context, on_timeout).to_string().as_bytes());
    finish(child)
}

#[test]
fn a_call_does_not_need_a_standard_error() {
    for on_timeout in ["proceed", "isolate"] {
        let context = PluginContext::new();
        context.add("c1");
        agent(&context, says("{\"programmed\": false, \"reason\": \"table full\"}\n"));
        if on_timeout == "isolate" {
            // Nothing to isolate the pod with: the agent has switched policies off.
            denizen_state::firewall::note_whether_off(&context.run_dir(), true).unwrap();
        }
        let added = call(&context, "ADD", on_timeout).expect(on_timeout);
        assert_eq!(added, context.configuration("1.1.0")["prevResult"], "{on_timeout}");
        assert_eq!(context.records(), ["c1/eth0", "c2/eth0"], "{on_timeout}");
        assert_eq!(call(&context, "DEL", on_timeout), Ok(Value::Null), "{on_timeout}");
        assert_eq!(context.records(), ["c1/eth0"], "{on_timeout}");
    }
}
