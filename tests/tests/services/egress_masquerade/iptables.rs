//! The chains of egress masquerade in iptables' table `security`, beside others' rules and
//! programs.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::fixture::{Host, every_protocol, service_ips};
use denizen_tests::node::netns::{self, Netns};
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::{binary, for_each_variant};
use serde_json::{Value, json};

use super::context::{EgressContext, TIMEOUT, outside};

fn backend(variant: Variant) -> Backend {
    match variant {
        Variant::Legacy => Backend::IptablesLegacy,
        Variant::Nft => Backend::IptablesNft,
    }
}

/// What of iptables' is in use in either variant has its table; so does what was only looked for,
/// in legacy.
fn has_security(node: &Netns) -> Result<bool> {
    let legacy = "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names";
    let legacy = node.output("sh", &["-c", legacy])?;
    let nft = node.output("nft", &["list", "tables"])?;
    Ok(legacy.contains("security") || nft.contains("security"))
}

/// Rules of somebody else's: ip-masq-agent's chain, and one where ours are.
fn others(node: &Netns, variant: Variant) -> Result<()> {
    for command in [
        "-t nat -N IP-MASQ",
        "-t nat -A IP-MASQ -d 10.0.0.0/8 -j RETURN",
        "-t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ",
        "-t security -N THEIRS",
        "-t security -A FORWARD -j THEIRS",
    ] {
        variant.run(node, command)?;
    }
    Ok(())
}

const THEIRS: [&str; 4] = [
    "-A IP-MASQ -d 10.0.0.0/8 -j RETURN",
    "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ",
    ":THEIRS -",
    "-A FORWARD -j THEIRS",
];

/// What others do to it is repaired; a restart finds it and writes nothing anew; `cleanup` takes it
/// away, and nobody else's.
fn a_life_among_others(label: &str, variant: Variant) -> Result<()> {
    let context = EgressContext::new(label)?;
    others(context.node(), variant)?;
    harm_is_repaired(&context, variant)?;
    a_restart_writes_nothing_anew(&context, variant)?;
    let program = binary::ours("denizen-agent")?.display().to_string();
    context.node().output(&program, &["cleanup"])?;
    let left = variant.dump(context.node())?;
    ensure!(!left.contains("DENIZEN-") && !left.contains("KUBE-"), "{left}");
    for line in THEIRS {
        ensure!(left.contains(line), "{line} is gone: {left}");
    }
    Ok(())
}

fn harm_is_repaired(context: &EgressContext, variant: Variant) -> Result<()> {
    let node = context.node();
    let agent = context.start(context.flags(backend(variant)))?;
    let expected = variant.dump(node)?;
    let harms = [
        "-t security -F DENIZEN-EGRESS",
        "-t security -F FORWARD",
        "-t security -A FORWARD -j THEIRS",
    ];
    harms.iter().try_for_each(|harm| variant.run(node, harm))?;
    eventually("repaired", TIMEOUT, || {
        let found = variant.dump(node)?;
        Ok(found == expected && agent.status()?["driftRepaired"] == 1)
    })?;
    ensure!(context.is_masqueraded(Host::Bridged, outside()[0], Protocol::Tcp)?);
    ensure!(agent.terminate()?.success());
    Ok(())
}

fn a_restart_writes_nothing_anew(context: &EgressContext, variant: Variant) -> Result<()> {
    let counted = || -> Result<Vec<String>> {
        let all = variant.counted(context.node())?;
        let marked = all.lines().filter(|line| line.contains("-A DENIZEN-EGRESS"));
        Ok(marked.map(str::to_owned).collect())
    };
    let before = counted()?;
    let agent = context.start(context.flags(backend(variant)))?;
    ensure!(agent.status()?["driftRepaired"] == 0, "{}", agent.status()?);
    agent.terminate()?;
    assert_eq!(counted()?, before, "written anew, its counters would be others");
    ensure!(before.iter().any(|line| !line.contains("[0:0]")), "{before:?}");
    Ok(())
}

for_each_variant!(a_life_among_others, "egress-life");

/// Once there, a table is one more that every packet goes through; the agent has looked twice by
/// then.
#[test]
fn without_the_flag_no_table_is_made() -> Result<()> {
    let context = EgressContext::new("egress-none")?;
    let node = context.node();
    for variant in Variant::BOTH {
        let agent = context.start(backend(variant).flags())?;
        variant.run(node, "-t nat -F KUBE-SERVICES")?;
        eventually("a look", TIMEOUT, || Ok(agent.status()?["driftRepaired"] == 1))?;
        ensure!(!has_security(node)?, "{variant:?} made it");
        agent.terminate()?;
    }
    Ok(())
}

/// IPv6 is none of it where no range of IPv6 is named.
#[test]
fn the_other_family_has_no_table() -> Result<()> {
    let context = EgressContext::new("egress-four")?;
    let node = context.node();
    fs::write(&context.config, "nonMasqueradeCIDRs: [10.0.0.0/8]")?;
    for variant in Variant::BOTH {
        let agent = context.start(context.flags(backend(variant)))?;
        let [v4, v6] = outside();
        ensure!(context.is_masqueraded(Host::Routed, v4, Protocol::Tcp)?, "{variant:?}");
        ensure!(!context.is_masqueraded(Host::Routed, v6, Protocol::Tcp)?, "{variant:?}");
        agent.terminate()?;
    }
    let v6 = node.output("cat", &["/proc/net/ip6_tables_names"])?
        + &node.output("nft", &["list", "tables", "ip6"])?;
    ensure!(v6.contains("nat") && !v6.contains("security"), "{v6}");
    Ok(())
}

/// Another variant or backend takes it over, and nothing is left of it where it was.
#[test]
fn another_variant_or_backend_leaves_nothing_behind() -> Result<()> {
    use Backend::{IptablesLegacy, IptablesNft, Ipvs, Nftables};
    let context = EgressContext::new("egress-swap")?;
    let mut last = None;
    for now in [
        IptablesLegacy,
        IptablesNft,
        Nftables,
        IptablesLegacy,
        Nftables,
        IptablesNft,
        IptablesLegacy,
    ] {
        let agent = context.start(context.flags(now))?;
        let to = outside()[0];
        ensure!(context.is_masqueraded(Host::Routed, to, Protocol::Tcp)?, "{now:?}");
        if let Some(last) = last {
            let is_gone = || match last {
                Nftables | Ipvs => {
                    let tables = ruleset::tables(context.node())?;
                    Ok(!tables.iter().any(|table| table.ends_with(" denizen")))
                }
                IptablesLegacy | IptablesNft => Ok(!context.is_programmed(last)?),
            };
            eventually(&format!("{last:?} is gone"), TIMEOUT, is_gone)?;
            ensure!(context.is_masqueraded(Host::Routed, to, Protocol::Tcp)?, "{now:?}");
        }
        agent.terminate()?;
        last = Some(now);
    }
    Ok(())
}

/// `KUBE-FORWARD` accepts what has the mark: it must not be a way for pods past the operator's own
/// rules.
#[test]
fn a_firewall_in_forward_still_has_its_say() -> Result<()> {
    for variant in Variant::BOTH {
        let context = EgressContext::new(&format!("egress-wall-{variant:?}"))?;
        let _agent = context.start(context.flags(backend(variant)))?;
        let [to, _] = outside();
        ensure!(context.is_masqueraded(Host::Routed, to, Protocol::Tcp)?);
        variant.run(context.node(), "-t filter -P FORWARD DROP")?;
        let outcome = context.fixture.probe(Host::Routed, to, Protocol::Tcp)?;
        ensure!(outcome == Outcome::Dropped, "{variant:?}: {outcome:?}");
    }
    Ok(())
}

/// What kube-proxy took over is kube-proxy's; this never is.
#[test]
fn cleanup_removes_it_from_beside_kube_proxys_chains() -> Result<()> {
    let context = EgressContext::new("egress-left")?;
    let (node, variant) = (context.node(), Variant::Legacy);
    context.start(context.flags(backend(variant)))?.terminate()?;
    for family in ["iptables", "ip6tables"] {
        let as_kube_proxys = "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
        variant.restore(node, family, as_kube_proxys)?;
    }
    let program = binary::ours("denizen-agent")?.display().to_string();
    // Its sets stay with the chains that name them.
    let _ = node.output(&program, &["cleanup"]);
    let left = variant.dump(node)?;
    ensure!(left.contains("-A KUBE-SERVICES") && !left.contains(":DENIZEN-"), "{left}");
    Ok(())
}

const LEGACY_RESTORE: [&str; 2] = ["iptables-legacy-restore", "ip6tables-legacy-restore"];

/// As `iptables-legacy-restore` says it of a kernel without the table (libiptc's TC_INIT fails).
const WITHOUT_SECURITY: &str = r#"#!/bin/sh
text=$(cat)
case $text in *\*security*)
    echo "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'security'" >&2
    echo "Error occurred at line: 1" >&2
    exit 2
esac
name=${0##*/}
printf '%s\n' "$text" | "/usr/sbin/$name" "$@"
"#;

/// Puts the programs that say so into `folder`, in front of those of this machine.
fn without_security(folder: &Path) -> Result<Command> {
    for name in LEGACY_RESTORE {
        let program = folder.join(name);
        fs::write(&program, WITHOUT_SECURITY)?;
        fs::set_permissions(program, Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new("env");
    command.arg(format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
    Ok(command)
}

/// Services come and go, status says what is missing, and when it is there at last, it is used.
#[test]
fn a_kernel_without_the_table_has_services_all_the_same() -> Result<()> {
    let context = EgressContext::new("egress-lacks")?;
    let cluster = &context.fixture.cluster;
    let folder = netns::folder()?;
    let program = without_security(folder.path())?;
    let agent =
        WrappedAgent::start_with(cluster, program, &context.flags(Backend::IptablesLegacy))?;
    let named = |status: &Value| {
        let errors = status["errors"].to_string();
        errors.contains("iptable_security (CONFIG_IP_NF_SECURITY)")
            && errors.contains("ip6table_security (CONFIG_IP6_NF_SECURITY)")
    };
    let is_served = |number: u8| {
        let mut frontends = service_ips(number).into_iter().map(|ip| SocketAddr::new(ip, 80));
        frontends.all(|frontend| {
            Probe::tcp(frontend).send_in(&context.fixture.routed.netns).endpoint().is_some()
        })
    };
    agent.until("synced, and both named", |status| status["synced"] == true && named(status))?;
    ensure!(is_served(10) && !context.is_masqueraded(Host::Routed, outside()[0], Protocol::Tcp)?);
    let more = context.fixture.service("more", 12, &every_protocol(), &[Host::Remote])?;
    cluster.manifests.put("more", &more)?;
    agent.until("one more", |status| is_served(12) && named(status))?;
    fs::write(&context.config, "nonMasqueradeCIDRs: ['fd00::/16']")?;
    // A look tries it again.
    LEGACY_RESTORE.iter().try_for_each(|name| fs::remove_file(folder.path().join(name)))?;
    agent.until("no errors", |status| status["errors"] == json!([]))?;
    assert_eq!(agent.status()?["driftRepaired"], 0, "it is nobody's doing");
    ensure!(context.is_masqueraded(Host::Routed, outside()[0], Protocol::Tcp)?);
    Ok(())
}

/// nf_tables' table of that name may be somebody's own, which iptables refuses to touch.
#[test]
fn a_foreign_table_of_that_name_is_left_alone_and_named() -> Result<()> {
    let context = EgressContext::new("egress-foreign")?;
    let node = context.node();
    node.nft(
        "table ip security { chain FORWARD { type filter hook forward priority 50; ct state new accept; }; }",
    )?;
    let theirs = || node.output("nft", &["list", "table", "ip", "security"]);
    let before = theirs()?;
    let agent = context.start(context.flags(Backend::IptablesNft))?;
    let errors = agent.status()?["errors"].to_string();
    ensure!(errors.contains("egress masquerade of IPv4") && !errors.contains("IPv6"), "{errors}");
    assert_eq!(theirs()?, before);
    let [v4, v6] = outside();
    ensure!(!context.is_masqueraded(Host::Bridged, v4, Protocol::Tcp)?);
    ensure!(context.is_masqueraded(Host::Bridged, v6, Protocol::Tcp)?);
    node.nft("delete table ip security")?;
    eventually("no errors", TIMEOUT, || Ok(agent.status()?["errors"] == json!([])))?;
    ensure!(
        context.is_masqueraded(Host::Bridged, v4, Protocol::Tcp).context("once theirs is gone")?
    );
    Ok(())
}
