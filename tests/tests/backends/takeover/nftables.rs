//! Into the nftables backend from kube-proxy's nftables mode, which hooks in where denizen does,
//! and back.

use denizen_tests::peers::kube_proxy::nftables as nftables_mode;
use denizen_tests::test_length;

use super::*;

fn theirs(context: &TakeoverContext) -> Result<bool> {
    let tables = context.node().output("nft", &["list", "tables"])?;
    Ok(tables.contains("table ip kube-proxy"))
}

/// The client address that the endpoint sees shows whose rules decided: kube-proxy's have everybody
/// masqueraded here.
fn denizen_decides(context: &TakeoverContext) -> Result<bool> {
    for _ in 0..20 {
        let outcome =
            context.fixture.probe(Host::Bridged, context.services[0].at, Protocol::Tcp)?;
        let endpoint = outcome.endpoint().with_context(|| format!("{outcome:?}"))?;
        // To itself, the pod is masqueraded by either.
        if context.fixture.owner(endpoint.ip()) != Some(Host::Bridged) {
            return Ok(!context.fixture.was_masqueraded(Host::Bridged, &outcome)?);
        }
    }
    anyhow::bail!("twenty times the same of three endpoints");
}

fn cleanup(context: &TakeoverContext) -> Result<()> {
    let binary = binary::ours("denizen-agent")?;
    context.node().run(|| checked(Command::new(&binary).arg("cleanup")))??;
    Ok(())
}

/// kube-proxy serves; denizen comes beside it; kube-proxy's tables go and come, time after time;
/// denizen ends and is cleaned up. Clients connect through all of it.
#[test]
fn nftables_takes_over_from_kube_proxys_nftables_and_back() -> Result<()> {
    let context = TakeoverContext::new("take-nft", Variant::Nft)?;
    let kube_proxy = context.kube_proxy();
    nftables_mode::start(&kube_proxy)?;
    ensure!(!denizen_decides(&context)?, "kube-proxy serves");
    let mut streams = context.lasting()?;
    for round in 0..test_length::times(20, 3) {
        unnoticed(&context, &mut streams, &format!("round {round}"), || {
            let agent = context.start(nftables())?;
            ensure!(denizen_decides(&context)?, "beside theirs");
            for _ in 0..5 {
                nftables_mode::remove(&kube_proxy)?;
                ensure!(!theirs(&context)? && denizen_decides(&context)?, "alone");
                nftables_mode::start(&kube_proxy)?;
                ensure!(theirs(&context)? && denizen_decides(&context)?, "theirs came");
            }
            agent.terminate()?;
            cleanup(&context)?;
            ensure!(!denizen_decides(&context)?, "kube-proxy serves again");
            Ok(())
        })?;
    }
    Ok(())
}
