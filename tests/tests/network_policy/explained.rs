//! What an agent's `explain` says of many packets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::policy::Transport;

/// Questions to one agent, none of them twice.
#[derive(Debug, Default)]
pub struct Questions {
    /// Each is a request to the agent's socket.
    lines: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Questions {
    /// About a packet that comes in through an interface. Returns the place of its answer among
    /// [`Self::answers`].
    pub fn ask(
        &mut self,
        from: IpAddr,
        interface: &str,
        to: SocketAddr,
        transport: Transport,
    ) -> usize {
        let to = match transport {
            Transport::Port(protocol, _) => format!("{to}/{protocol}"),
            Transport::Other if to.is_ipv4() => format!("{}/icmp", to.ip()),
            Transport::Other => format!("{}/icmpv6", to.ip()),
        };
        let line = format!("{{\"explain\":{{\"from\":\"{from}@{interface}\",\"to\":\"{to}\"}}}}\n");
        let next = self.lines.len();
        let number = *self.numbers.entry(line.clone()).or_insert(next);
        if number == next {
            self.lines.push(line);
        }
        number
    }

    /// Whether each passes this node.
    pub fn answers(&self, agent: &Agent) -> Result<Vec<bool>> {
        let mut verdicts = Vec::with_capacity(self.lines.len());
        let mut strange = Vec::new();
        agent.ask_in_turn(self.lines.iter(), |answer| {
            // A quotation mark within a text is escaped.
            match (answer.contains(r#""verdict":""#), answer.contains(r#""verdict":"drop""#)) {
                (true, is_dropped) => verdicts.push(!is_dropped),
                (false, _) => strange.push(answer.to_owned()),
            }
        })?;
        ensure!(strange.is_empty(), "no explanation: {strange:?}");
        Ok(verdicts)
    }
}
