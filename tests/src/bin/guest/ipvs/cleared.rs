//! Another program removes all virtual servers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::packets::probe::Probe;

use crate::context::GuestContext;

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Well below a minute, the interval of the full resync.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// The agent restores them at once. If it happens again and again, nf_tables balances instead.
pub(crate) fn is_repaired() -> Result<()> {
    let context = GuestContext::new("ipvs-cleared")?;
    let agent = context.start(vec!["--backend=ipvs".to_owned()])?;
    let node = context.node();
    let servers = || node.output("ipvsadm", &["--save", "--numeric"]);
    let clear = || node.output("ipvsadm", &["--clear"]);
    let before = servers()?;
    let count = |text: &str| text.lines().count();
    for _ in 0..2 {
        let repairs = agent.status()?["driftRepaired"].as_u64();
        clear()?;
        eventually("they are back", NOTICE_TIMEOUT, || Ok(count(&servers()?) == count(&before)))?;
        let counted = || Ok(agent.status()?["driftRepaired"].as_u64() > repairs);
        eventually("the repair is counted", NOTICE_TIMEOUT, counted)?;
    }
    clear()?;
    agent.until("it is said", NOTICE_TIMEOUT, |status| {
        let errors = status["errors"].as_array().into_iter().flatten();
        errors.filter_map(|error| error.as_str()).any(|text| text.contains("keeps removing"))
    })?;
    let web = SocketAddr::new(service_ips(10)[0], 80);
    for who in [Host::Bridged, Host::Outside, Host::ThisNode] {
        eventually("nf_tables balances", TIMEOUT, || {
            Ok(Probe::tcp(web).send_in(context.fixture().place(who).0).endpoint().is_some())
        })?;
    }
    ensure!(servers()?.is_empty(), "{}", servers()?);
    agent.terminate()?;
    Ok(())
}
