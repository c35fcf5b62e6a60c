//! A node without denizen: the kernel, its settings, other programs, the CNI configuration.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::check::{CheckReport, CheckedNode};
use denizen_tests::binary;
use denizen_tests::kernel::ruleset::tables;
use denizen_tests::kernel::table_owner::TableOwner;

/// A name in the report, the verdict, and a part of the reason.
type Expected = (&'static str, &'static str, &'static str);

/// What is wrong, how it is made so, flags, and what is found.
type Fault = (&'static str, fn(&CheckedNode) -> Result<()>, &'static [&'static str], Expected);

const FAULTS: [Fault; 18] = [
    (
        "packets are looked up in the table of announcements",
        |node| node.netns.ip("rule add priority 77 lookup 219"),
        &["--routing-mode=table"],
        ("announcing", "failure", "routing rule 77 (`ip rule`) leads to table 219"),
    ),
    (
        "nothing is forwarded",
        |node| node.netns.sysctl("net.ipv4.ip_forward", "0"),
        &[],
        ("forwarding", "failure", "net.ipv4.ip_forward is 0"),
    ),
    (
        "kube-proxy's nftables mode",
        |node| node.netns.nft("table ip kube-proxy { }"),
        &[],
        ("service-proxies", "warning", "the nftables table kube-proxy"),
    ),
    (
        "kube-proxy's iptables mode, nft",
        |node| chain(node, "iptables-nft"),
        &[],
        ("service-proxies", "warning", "chains in iptables-nft"),
    ),
    (
        "kube-proxy's iptables mode, legacy",
        |node| chain(node, "iptables-legacy"),
        &[],
        ("service-proxies", "warning", "chains in iptables-legacy"),
    ),
    (
        "two engines of NetworkPolicy",
        |node| node.netns.nft("table ip6 calico { }"),
        &["--network-policy=on"],
        ("policy-engines", "warning", "Calico (table calico of family ip6)"),
    ),
    (
        "a firewall that drops",
        |node| drops(node, ""),
        &[],
        ("forward-chains", "failure", "table inet strict, chain forward drops all"),
    ),
    (
        "a firewall that may drop",
        |node| drops(node, "ip daddr 192.0.2.0/24 accept"),
        &[],
        ("forward-chains", "warning", "drops by default"),
    ),
    (
        "no CNI configuration",
        |node| Ok(fs::remove_file(node.path("cni/10-pods.conflist"))?),
        &[],
        ("cni-configuration", "failure", "no usable CNI configuration"),
    ),
    (
        "a CNI configuration that no runtime takes",
        |node| Ok(fs::write(node.path("cni/10-pods.conflist"), "{")?),
        &[],
        ("cni-configuration", "failure", "no usable CNI configuration"),
    ),
    (
        "no folder of CNI configurations",
        |node| Ok(fs::remove_dir_all(node.path("cni"))?),
        &[],
        ("cni-configuration", "failure", "cannot list"),
    ),
    (
        "a manifest that is none",
        |node| node.manifests.put_text("bad", "kind: ["),
        &[],
        ("manifests", "warning", "bad.yaml"),
    ),
    (
        "no manifests",
        |node| Ok(fs::remove_dir_all(node.manifests.folder())?),
        &[],
        ("manifests", "failure", "cannot read the folder of manifests"),
    ),
    (
        "connections without room",
        |node| settings(node, 99, 100, 100),
        &[],
        ("conntrack-room", "failure", "99 of 100"),
    ),
    (
        "little room",
        |node| settings(node, 75, 100, 100),
        &[],
        ("conntrack-room", "warning", "75 of 100"),
    ),
    (
        "a small table",
        |node| settings(node, 0, 1000, 100),
        &[],
        ("conntrack-room", "warning", "1000 fit in 100 buckets"),
    ),
    (
        "no connection tracking",
        |node| {
            settings(node, 0, 1, 1)?;
            Ok(fs::remove_file(node.path("sys/net/netfilter/nf_conntrack_count"))?)
        },
        &[],
        ("conntrack-room", "warning", "not known"),
    ),
    (
        "no br_netfilter",
        |node| {
            settings(node, 0, 1, 1)?;
            Ok(fs::remove_dir_all(node.path("sys/net/bridge"))?)
        },
        &[],
        ("br-netfilter", "warning", "br_netfilter is not loaded"),
    ),
];

fn chain(node: &CheckedNode, program: &str) -> Result<()> {
    let make = ["-w", "-t", "nat", "-N", "KUBE-SERVICES"];
    node.netns.output(program, &make[usize::from(program == "iptables-nft")..]).map(drop)
}

fn drops(node: &CheckedNode, rule: &str) -> Result<()> {
    let hook = "type filter hook forward priority 0; policy drop;";
    node.netns.nft(&format!("table inet strict {{ chain forward {{ {hook} {rule}\n }}; }}"))
}

/// Kernel settings that no namespace can change.
fn settings(node: &CheckedNode, count: u64, max: u64, buckets: u64) -> Result<()> {
    let files = [
        ("ipv4/ip_forward", 1),
        ("bridge/bridge-nf-call-iptables", 1),
        ("bridge/bridge-nf-call-ip6tables", 1),
        ("netfilter/nf_conntrack_count", count),
        ("netfilter/nf_conntrack_max", max),
        ("netfilter/nf_conntrack_buckets", buckets),
    ];
    for (name, value) in files {
        let file = node.path("sys/net").join(name);
        fs::create_dir_all(file.parent().context("a folder")?)?;
        fs::write(file, format!("{value}\n"))?;
    }
    Ok(())
}

#[test]
fn each_fault_of_a_node_is_found_and_nothing_else() -> Result<()> {
    let well = CheckedNode::new("check-well")?;
    for flags in [&[][..], &["--network-policy=on"]] {
        well.check(flags)?.ensure_well()?;
    }
    settings(&well, 74, 100, 100)?;
    well.check(&[&format!("--sysctl-dir={}", well.path("sys").display())])?.ensure_well()?;
    for (what, make, flags, (name, verdict, words)) in FAULTS {
        let node = CheckedNode::new("check-fault")?;
        make(&node)?;
        let sysctls = format!("--sysctl-dir={}", node.path("sys").display());
        let mut flags = flags.to_vec();
        if node.path("sys").exists() {
            flags.push(&sysctls);
        }
        node.check(&flags)?.ensure_only(name, verdict, words).with_context(|| what.to_owned())?;
    }
    Ok(())
}

#[test]
fn tables_of_another_process_are_found_and_nothing_is_left() -> Result<()> {
    let node = CheckedNode::new("check-owned")?;
    let port_exact = "--detect-local=pod-state=port-exact";
    let cases: [(&str, &[&str], Expected); 5] = [
        ("ip denizen", &[], ("nftables", "warning", "so the backend would be iptables")),
        (
            "ip denizen",
            &["--backend=nftables"],
            ("nftables", "failure", "owned by another process"),
        ),
        ("bridge denizen", &[port_exact], ("bridge-ports", "failure", "owned by another process")),
        (
            "ip6 denizen-firewall",
            &["--network-policy=on"],
            ("network-policy", "failure", "owned by another process"),
        ),
        ("bridge denizen-firewall", &[], ("network-policy", "warning", "cannot be enforced")),
    ];
    for (table, flags, (name, verdict, words)) in cases {
        node.check(flags)?.ensure_well().with_context(|| format!("before {table}"))?;
        let owned = TableOwner::named(&node.netns, table)?;
        let found = node.check(flags)?;
        found.ensure_only(name, verdict, words).with_context(|| format!("{table} {flags:?}"))?;
        drop(owned);
    }
    // This kernel may have no IPVS, which is another check's concern.
    node.check(&["--backend=ipvs"])?.ensure("nftables", "ok", "accepts the tables")?;
    let owned = TableOwner::table(&node.netns, "arp")?;
    let found = node.check(&["--backend=ipvs"])?;
    found.ensure("nftables", "failure", "owned by another process")?;
    node.check(&[])?.ensure_well()?;
    drop(owned);
    assert_eq!(tables(&node.netns)?, [""; 0]);
    assert_eq!(node.netns.output("ip", &["-o", "link"])?.lines().count(), 1);
    Ok(())
}

/// Behind what the shell script `hide` makes of the machine.
fn hidden(node: &CheckedNode, hide: &str, flags: &[&str]) -> Result<CheckReport> {
    let mut program = Command::new("unshare");
    let script = format!("{hide}; exec \"$@\"");
    program.args(["--mount", "sh", "-e", "-c", &script, "sh"]);
    program.arg(binary::ours("denizen-agent")?);
    CheckReport::behind(&node.netns, program, node.all_flags(flags))
}

#[test]
fn missing_programs_extensions_and_rights_are_found() -> Result<()> {
    let node = CheckedNode::new("check-less")?;
    let backend = ["--backend=iptables", "--iptables-variant=nft"];
    hidden(&node, "true", &backend)?.ensure_well()?;
    let programs = hidden(&node, "mount -t tmpfs tmpfs /usr/sbin", &backend)?;
    programs.ensure_only("iptables", "failure", "iptables-nft-save")?;
    let extensions = "mount -t tmpfs tmpfs /usr/lib/*/xtables";
    hidden(&node, extensions, &backend)?.ensure_only("iptables", "warning", "-m statistic")?;
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]);
    unprivileged.arg(binary::ours("denizen-agent")?);
    let found = CheckReport::behind(&node.netns, unprivileged, node.all_flags(&[]))?;
    found.ensure_only("permissions", "failure", "no CAP_NET_ADMIN")?;
    for name in ["nftables", "network-policy", "conntrack-netlink", "service-proxies"] {
        found.ensure(name, "skipped", "without CAP_NET_ADMIN")?;
    }
    Ok(())
}

#[test]
fn others_rules_that_cannot_be_read_are_said() -> Result<()> {
    let node = CheckedNode::new("check-unread")?;
    chain(&node, "iptables-legacy")?;
    node.netns.output("iptables-legacy", &["-w", "-N", "another-programs"])?;
    let found = hidden(&node, "mount -t tmpfs tmpfs /usr/sbin", &[])?;
    found.ensure("service-proxies", "warning", "cannot read legacy iptables")?;
    found.ensure("policy-engines", "warning", "cannot read legacy iptables")?;
    found.ensure("forward-chains", "failure", "legacy iptables is in use here")
}

#[test]
fn kube_proxy_beside_denizen_is_found_and_with_services_off_it_is_well() -> Result<()> {
    let node = CheckedNode::new("check-beside")?;
    node.netns.nft("table ip kube-proxy { }")?;
    // Other tests have processes of this name, so this one has a process namespace of its own.
    let folder = node.folder.path().display();
    let run = format!(
        "cp /bin/sleep {folder}/kube-proxy; {folder}/kube-proxy 60 &
         for i in $(seq 1000); do grep -qx kube-proxy /proc/$!/comm && break; done; \"$@\""
    );
    let mut program = Command::new("unshare");
    program.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    program.args(["sh", "-e", "-c", &run, "sh"]).arg(binary::ours("denizen-agent")?);
    let flags = node.all_flags(&[]).into_iter().filter(|flag| flag != "--pre");
    let found = CheckReport::behind(&node.netns, program, flags)?;
    found.ensure("service-proxies", "failure", "kube-proxy runs here as well")?;
    let off = node.check(&["--services=off", "--network-policy=on"])?;
    off.ensure_well()?;
    off.ensure("service-proxies", "ok", "kube-proxy serves services")
}

#[test]
fn who_listens_where_bird_would_is_found() -> Result<()> {
    let node = CheckedNode::new("check-bgp")?;
    let flags = ["--routing-mode=bird", r#"--bird={"asn":1}"#];
    node.check(&flags)?.ensure_well()?;
    let listener = node.netns.run(|| TcpListener::bind("0.0.0.0:179"))??;
    node.check(&flags)?.ensure_only("announcing", "failure", "listens at port 179")?;
    node.check(&["--routing-mode=table"])?.ensure_well()?;
    // The agent's own.
    fs::create_dir_all(node.path("run/bird"))?;
    let _bird = UnixListener::bind(node.path("run/bird/bird.ctl"))?;
    node.check(&flags)?.ensure_well()?;
    drop(listener);
    Ok(())
}

/// What systemd-networkd is configured to do, it does with the agent's routes.
#[test]
fn systemd_networkd_that_removes_routes_is_found() -> Result<()> {
    let node = CheckedNode::new("check-networkd")?;
    let folder = node.folder.path().display();
    let found = |setting: &str, mode: &str| {
        // It sees a process and files of its own. Of all parts, this one is the last by name.
        let run = format!(
            "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/networkd.conf.d
             printf '[Network]\nManageForeignRoutes={setting}\n' \
                 > /run/systemd/networkd.conf.d/zzz.conf
             cp /bin/sleep {folder}/systemd-networkd; {folder}/systemd-networkd 60 &
             for i in $(seq 1000); do grep -qx systemd-network /proc/$!/comm && break; done; \"$@\""
        );
        let mut program = Command::new("unshare");
        program.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        program.args(["sh", "-e", "-c", &run, "sh"]).arg(binary::ours("denizen-agent")?);
        CheckReport::behind(&node.netns, program, node.all_flags(&[mode]))
    };
    for mode in ["--routing-mode=direct", "--routing-mode=table"] {
        found("yes", mode)?.ensure("announcing", "warning", "systemd-networkd manages links")?;
    }
    found("no", "--routing-mode=table")?.ensure("announcing", "ok", "")?;
    found("yes", "--routing-mode=off")?.ensure("announcing", "skipped", "")
}

#[test]
fn who_listens_where_the_agent_would_is_found() -> Result<()> {
    let node = CheckedNode::new("check-ports")?;
    for (at, flag) in
        [("127.0.0.1:10249", "--metrics-bind-address"), ("0.0.0.0:10256", "--healthz")]
    {
        let listener = node.netns.run(|| TcpListener::bind(at))??;
        node.check(&[])?.ensure_only("ports", "warning", at)?;
        let advice =
            node.check(&[])?.checks.iter().any(|check| check["advice"].to_string().contains(flag));
        ensure!(advice, "{flag}");
        drop(listener);
    }
    node.check(&[])?.ensure_well()
}
