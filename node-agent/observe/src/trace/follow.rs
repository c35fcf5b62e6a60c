//! Marks packets, and receives the kernel's messages about them.

#![expect(clippy::disallowed_methods, reason = "the command bounds its own time")]

use std::time::{Duration, Instant};

use denizen_netlink::NetlinkError;
use denizen_nft::{Chain, Kernel, NftError, Schema, TableFamily, Tracer};
use nix::errno::Errno;
use thiserror::Error;

use super::journey::{Journey, Journeys};
use super::report::ReportNames;
use super::rules::TracedRules;
use super::{Prediction, TraceReport, table};
use denizen_backend::BackendName;
use denizen_plan::explain::{FirstPacket, PacketError, PacketTarget};

/// Hooks run one after the other without a pause: a packet without messages for this long has
/// ended.
const SILENCE: Duration = Duration::from_millis(150);

/// Why packets cannot be followed.
#[derive(Debug, Error)]
pub enum TraceError {
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The source or the destination stands for many addresses.
    #[error("trace follows the packets of one address to one address, and {0} stands for many")]
    Broad(std::net::IpAddr),
    /// The packet is a ping, which has no port.
    #[error("trace follows the packets of connections to a port; about pings, ask `explain`")]
    Ping,
    /// The rules are not in nf_tables.
    #[error(
        "the agent's rules are in the tables of ip_tables (--iptables-variant legacy). The kernel \
         reports only what nf_tables does to a packet; ip_tables has the TRACE target, which writes \
         to the kernel's log. Use --backend nftables or --iptables-variant nft, or ask `explain`"
    )]
    Legacy,
    /// The kernel cannot remove the tables by itself when the command ends.
    #[error("this kernel has no tables with an owner: trace needs Linux 5.12")]
    NoOwner(#[source] NftError),
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Packets that are being followed. Dropping it removes the tables that mark them.
pub struct PacketFollower {
    tracer: Tracer,
    kernel: Kernel,
    rules: TracedRules,
    prediction: Prediction,
    journeys: Journeys,
    count: usize,
    reported: usize,
    /// Messages were lost, and the remaining messages about the packets of that time are still to
    /// be read.
    is_torn: bool,
    has_lost: bool,
}

impl PacketFollower {
    /// Follows up to `count` packets from now on, in this thread's network namespace.
    ///
    /// # Errors
    /// [`TraceError`]. Nothing is left behind then.
    pub fn start(prediction: Prediction, count: u16) -> Result<Self, TraceError> {
        let packet = FirstPacket::parse(&prediction.from, &prediction.to)?;
        refuse_many(&packet)?;
        let PacketTarget::Port(protocol, port) = packet.transport else {
            return Err(TraceError::Ping);
        };
        let mut kernel = Kernel::open()?;
        let mut rules = TracedRules::default();
        let is_iptables = prediction.backend == BackendName::Iptables.to_string();
        if is_iptables && !rules.has_chain(&mut kernel, "KUBE-SERVICES") {
            return Err(TraceError::Legacy);
        }
        // The tracer comes first, so that no message about the first marked packets is lost.
        let tracer = Tracer::open()?;
        // The socket's portid makes the name unique in this network namespace. The driver wants
        // names that live as long as the process, so this name is leaked.
        let name = Box::leak(format!("{}{}", table::TABLE_PREFIX, kernel.portid()).into());
        let tables = table::tables(name, &packet, (protocol, port), &prediction, count);
        add_tables(&mut kernel, &tables)?;
        rules.read_hooks(&mut kernel)?;
        let journeys = Journeys::new(name);
        Ok(Self {
            tracer,
            kernel,
            rules,
            prediction,
            journeys,
            count: count.into(),
            reported: 0,
            is_torn: false,
            has_lost: false,
        })
    }

    /// Whether the kernel's messages about some packets were lost; these are not reported.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Passes each packet that has ended to `each`, until `count` packets were reported, the time
    /// is over or nobody wants more.
    pub fn follow(
        &mut self,
        timeout: Duration,
        is_wanted: impl Fn() -> bool,
        mut each: impl FnMut(TraceReport),
    ) -> Result<(), TraceError> {
        let deadline = Instant::now() + timeout;
        while self.reported < self.count {
            let left = deadline.saturating_duration_since(Instant::now());
            self.receive(SILENCE.min(left))?;
            let now = Instant::now();
            let is_over = left.is_zero() || !is_wanted();
            // At the end, packets are not waited for any more: the last ones may be incomplete.
            let then = if is_over { Some(now) } else { now.checked_sub(SILENCE) };
            let then = then.filter(|_| !self.is_torn);
            let ended = then.map(|then| self.journeys.silent_since(then)).unwrap_or_default();
            for journey in ended.iter().take(self.count - self.reported) {
                self.report(journey).into_iter().for_each(&mut each);
            }
            if is_over {
                break;
            }
        }
        Ok(())
    }

    /// Waits for messages, for at most `wait`, and takes them in. Packets that were on their way
    /// when messages were lost are forgotten, because they are incomplete.
    fn receive(&mut self, wait: Duration) -> Result<(), TraceError> {
        // Zero would wait for ever.
        const SHORTEST: Duration = Duration::from_millis(1);
        let wait = if self.is_torn { SHORTEST } else { wait.max(SHORTEST) };
        let journeys = &mut self.journeys;
        match self.tracer.receive(wait, |message| journeys.take(message, Instant::now())) {
            Err(NetlinkError::Overflow) => (self.is_torn, self.has_lost) = (true, true),
            Ok(false) if self.is_torn => {
                self.journeys.forget();
                self.is_torn = false;
            }
            received => drop(received?),
        }
        Ok(())
    }

    fn report(&mut self, journey: &Journey) -> Option<TraceReport> {
        self.rules.learn(&mut self.kernel, &journey.messages);
        let (rules, names) = (&self.rules, &self.prediction.names);
        let words = ReportNames { rules, names, interface: &interface };
        let report = TraceReport::of(self.reported + 1, journey, &self.prediction, &words)?;
        self.reported += 1;
        Some(report)
    }
}

fn refuse_many(packet: &FirstPacket) -> Result<(), TraceError> {
    let is_many = |ip: &std::net::IpAddr| ip.is_unspecified() || ip.is_multicast();
    match [packet.source, packet.destination].into_iter().find(is_many) {
        Some(address) => Err(TraceError::Broad(address)),
        None => Ok(()),
    }
}

fn add_tables(kernel: &mut Kernel, tables: &[(Schema, Vec<Chain>)]) -> Result<(), TraceError> {
    let added = kernel.write(TableFamily::Ip, |batch| {
        for (schema, chains) in tables {
            batch.about(schema.family);
            batch.add_owned_table(schema, chains);
        }
    });
    added.map_err(|error| match error.errno() {
        Some(Errno::EOPNOTSUPP | Errno::EINVAL) => TraceError::NoOwner(error),
        _ => TraceError::Nft(error),
    })
}

/// The name of an interface now; its index if it is gone.
pub fn interface(index: u32) -> String {
    let name = nix::net::if_::if_indextoname(index);
    let name = name.ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| format!("interface {index}"))
}
