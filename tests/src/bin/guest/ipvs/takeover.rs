//! Taking over from a kube-proxy in ipvs mode, under load, and back.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::kernel::conntrack::KeptFlow;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::packets::long_connection::LongConnection;
use denizen_tests::peers::kube_proxy::ipvs::{DEVICE, Ipvs};

use crate::context::GuestContext;

/// Denizen is started beside kube-proxy, which is then removed while denizen serves.
struct Takeover<'a> {
    context: &'a GuestContext,
    ipvs: Ipvs<'a>,
    /// The node's addresses before kube-proxy started.
    before: String,
}

/// Clients that kube-proxy's ipvs mode serves until its virtual servers go. Then their connections
/// are reset, and denizen serves their UDP flow.
struct ClientsOfKubeProxy {
    connections: Vec<LongConnection>,
    flow: KeptFlow,
}

impl ClientsOfKubeProxy {
    fn are_alive(&mut self) -> Result<()> {
        let outcome = self.flow.send();
        ensure!(outcome.endpoint().is_some(), "a flow broke: {outcome:?}");
        self.connections.iter_mut().try_for_each(LongConnection::still_alive)
    }

    fn are_over(mut self) -> Result<()> {
        let outcome = self.flow.send();
        ensure!(outcome.endpoint().is_some(), "the flow does not go on: {outcome:?}");
        self.connections.iter_mut().try_for_each(LongConnection::is_reset)
    }
}

impl<'a> Takeover<'a> {
    /// Starts kube-proxy, which serves.
    fn begin(context: &'a GuestContext, variant: Variant) -> Result<Self> {
        let (before, ipvs) = (context.addresses()?, context.ipvs(variant));
        ipvs.start()?;
        let connections = context.everyone("ipvs serves")?;
        ensure!(ipvs.taken()? == connections, "{} of {connections}", ipvs.taken()?);
        Ok(Self { context, ipvs, before })
    }

    /// Starts denizen beside kube-proxy. Denizen serves from then on.
    fn beside(&self, flags: Vec<String>, backend: &str) -> Result<(Agent, ClientsOfKubeProxy)> {
        let (connections, flow) = (self.context.lasting()?, self.context.flow()?);
        let mut theirs = ClientsOfKubeProxy { connections, flow };
        theirs.are_alive()?;
        let start = || self.context.start(flags);
        let agent = self.context.unnoticed(&mut theirs.connections, "denizen comes", start)?;
        ensure!(agent.status()?["backend"] == backend, "{}", agent.status()?);
        self.stands_still("both are there")?;
        theirs.are_alive()?;
        Ok((agent, theirs))
    }

    /// IPVS gets no new connections.
    fn stands_still(&self, what: &str) -> Result<()> {
        let before = self.ipvs.taken()?;
        self.context.everyone(what)?;
        let after = self.ipvs.taken()?;
        ensure!(before == after, "{what}: ipvs took {} connections", after - before);
        Ok(())
    }

    /// Removes kube-proxy's objects while denizen serves; returns connections that denizen carries.
    fn alone(&self, agent: &Agent, mut theirs: ClientsOfKubeProxy) -> Result<Vec<LongConnection>> {
        let mut ours = self.context.lasting()?;
        while self.ipvs.remembers()? {
            thread::sleep(Duration::from_millis(500));
        }
        theirs.are_alive()?;
        let cleanup = || self.context.cleanup(&["--kube-proxy"]);
        let output = self.context.unnoticed(&mut ours, "kube-proxy goes", cleanup)?;
        ensure!(
            output.contains(&format!("an agent is running (process {})", agent.pid()))
                && output.contains("ended 3 connections"),
            "{output}"
        );
        theirs.are_over().context("what ipvs carried")?;
        self.is_gone()?;
        let again = self.context.cleanup(&["--kube-proxy"])?;
        ensure!(!again.contains("removed"), "there is nothing left to remove: {again}");
        self.context.everyone("denizen alone")?;
        ensure!(agent.status()?["driftRepaired"] == 0, "{}", agent.status()?);
        Ok(ours)
    }

    /// Nothing of kube-proxy's ipvs mode is left, whether denizen has chains or not.
    fn is_gone(&self) -> Result<()> {
        let node = self.context.node();
        let servers = node.output("ipvsadm", &["--save", "--numeric"])?;
        ensure!(servers.is_empty(), "{servers}");
        let sets = node.output("ipset", &["list", "-n"])?;
        ensure!(!sets.contains("KUBE-"), "{sets}");
        let now = self.context.addresses()?;
        ensure!(now == self.before, "{}\nbut now\n{now}", self.before);
        for variant in Variant::BOTH {
            let rules = variant.dump(node)?;
            let theirs =
                ["IPVS", "CANARY", "KUBE-NODE-PORT ", "KUBE-LOAD-BALANCER", "match-set KUBE-"];
            ensure!(!theirs.iter().any(|name| rules.contains(name)), "{rules}");
        }
        Ok(())
    }
}

/// kube-proxy's ipvs mode begins to serve where denizen only enforces policies: these do not see
/// what IPVS forwards, and `status` must say so.
fn beside_policies(context: &GuestContext) -> Result<Takeover<'_>> {
    let flags = ["--services=off", "--network-policy=on"].map(str::to_owned);
    let agent = context.start(flags.into())?;
    let is_reported = || -> Result<bool> {
        let status = agent.status()?;
        let errors = status["errors"].as_array().context("errors")?;
        Ok(errors.iter().any(|error| error.to_string().contains("ipvs serves services here")))
    };
    ensure!(!is_reported()?, "{}", agent.status()?);
    let takeover = Takeover::begin(context, Variant::Legacy)?;
    ensure!(is_reported()?, "{}", agent.status()?);
    agent.terminate()?;
    Ok(takeover)
}

/// The nftables backend, which this kernel's `auto` chooses, takes over; then kube-proxy again.
pub(crate) fn nftables_takes_over() -> Result<()> {
    let context = GuestContext::new("ipvs-nft")?;
    let takeover = beside_policies(&context)?;
    let (agent, theirs) = takeover.beside(Vec::new(), "nftables")?;
    let mut ours = takeover.alone(&agent, theirs)?;
    for variant in Variant::BOTH {
        let rules = variant.dump(context.node())?;
        ensure!(!rules.contains("KUBE-"), "{rules}");
    }
    context.unnoticed(&mut ours, "kube-proxy comes back", || takeover.ipvs.start())?;
    takeover.stands_still("both are there again")?;
    context.unnoticed(&mut ours, "denizen goes", || {
        agent.terminate()?;
        context.cleanup(&[])
    })?;
    let before = takeover.ipvs.taken()?;
    let connections = context.everyone("ipvs serves again")?;
    ensure!(
        takeover.ipvs.taken()? == before + connections,
        "{before}, then {}",
        takeover.ipvs.taken()?
    );
    let links = context.node().output("ip", &["-brief", "link"])?;
    ensure!(
        links.contains(DEVICE),
        "cleanup without --kube-proxy leaves what is kube-proxy's: {links}"
    );
    ours.iter_mut().try_for_each(LongConnection::still_alive)
}

/// The iptables backend takes over, in the chains that kube-proxy has made.
pub(crate) fn iptables_takes_over(variant: Variant) -> Result<()> {
    let context = GuestContext::new("ipvs-ipt")?;
    let takeover = Takeover::begin(&context, variant)?;
    let (agent, theirs) = takeover.beside(variant.flags(), "iptables")?;
    takeover.alone(&agent, theirs)?;
    agent.terminate()?;
    context.cleanup(&[])?;
    let rules = variant.dump(context.node())?;
    ensure!(!rules.contains("KUBE-"), "{rules}");
    Ok(())
}
