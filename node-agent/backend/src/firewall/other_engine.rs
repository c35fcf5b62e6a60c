//! Whether another engine enforces NetworkPolicies on this node. Two engines would each refuse what
//! the other permits, and an operator would look for the reason in the wrong one.
//!
//! An engine is recognised by its objects in the kernel: links, and tables and chains of rules.
//! What a removed engine left behind looks the same, so [`PolicyEngine::found`] names the object.
//!
//! Amazon's agent is not recognised. Its programs are attached to pods' interfaces and pinned in a
//! file system that the agent need not see, and its interfaces (`eni…`) exist without it as well.

use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::Kernel;
use nix::errno::Errno;
use nix::net::if_::if_nameindex;
use thiserror::Error;

use denizen_iptables::{IptablesError, Programs, Table, Variant, legacy_tables};

/// An engine that seems to enforce policy here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyEngine {
    pub name: &'static str,
    /// The kernel object by which it was recognised.
    pub found: String,
}

/// Why it is not known whether another engine enforces policy.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The node's links cannot be listed.
    #[error("cannot list links to find other engines of NetworkPolicy")]
    Links(#[source] Errno),
    /// Tables and chains cannot be read.
    #[error("cannot read nf_tables to find other engines of NetworkPolicy")]
    Netlink(#[from] NetlinkError),
    /// Legacy iptables has chains, and they cannot be read.
    #[error("cannot read legacy iptables to find other engines of NetworkPolicy")]
    Iptables(#[from] IptablesError),
}

/// The other engine that enforces policy on this node, if one does. The network namespace is that
/// of the calling thread.
///
/// # Errors
/// [`EngineError`].
pub fn other_engine() -> Result<Option<PolicyEngine>, EngineError> {
    let mut objects = links()?;
    objects.extend(tables_and_chains()?);
    for version in Family::BOTH {
        objects.extend(legacy_chains(version)?);
    }
    Ok(recognise(&objects))
}

/// Something in the kernel by which an engine is recognised, and where it is.
#[derive(Debug)]
struct KernelObject {
    kind: ObjectKind,
    name: String,
    /// The rest of its description, after kind and name.
    of: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    Link,
    Table,
    Chain,
}

/// How a name is matched.
#[derive(Debug, Clone, Copy)]
enum NamePattern {
    Exactly(&'static str),
    Beginning(&'static str),
}

/// The kernel objects by which each engine is recognised. Objects that also exist without policy
/// enforcement, such as pods' interfaces, are not in the list.
const ENGINES: [(&str, ObjectKind, NamePattern); 14] = [
    ("Calico", ObjectKind::Chain, NamePattern::Beginning("cali-")),
    ("Calico", ObjectKind::Table, NamePattern::Exactly("calico")),
    // Calico's eBPF data plane has this link in place of chains.
    ("Calico", ObjectKind::Link, NamePattern::Exactly("bpfin.cali")),
    ("Cilium", ObjectKind::Link, NamePattern::Exactly("cilium_host")),
    // k3s and k0s have it built in.
    ("kube-router", ObjectKind::Chain, NamePattern::Exactly("KUBE-ROUTER-FORWARD")),
    ("kube-router", ObjectKind::Chain, NamePattern::Beginning("KUBE-NWPLCY-")),
    ("kube-router", ObjectKind::Chain, NamePattern::Beginning("KUBE-POD-FW-")),
    ("kube-router", ObjectKind::Table, NamePattern::Beginning("kube-router-filter-")),
    ("Antrea", ObjectKind::Link, NamePattern::Exactly("antrea-gw0")),
    ("OVN-Kubernetes", ObjectKind::Link, NamePattern::Exactly("ovn-k8s-mp0")),
    ("kube-network-policies", ObjectKind::Table, NamePattern::Exactly("kube-network-policies")),
    // kind's default network plugin has it built in.
    ("kindnet", ObjectKind::Table, NamePattern::Exactly("kindnet-network-policies")),
    ("Weave Net", ObjectKind::Chain, NamePattern::Exactly("WEAVE-NPC")),
    ("Azure NPM", ObjectKind::Chain, NamePattern::Exactly("AZURE-NPM")),
];

fn recognise(objects: &[KernelObject]) -> Option<PolicyEngine> {
    ENGINES.iter().find_map(|(engine, kind, named)| {
        let is_named = |name: &str| match named {
            NamePattern::Exactly(exactly) => name == *exactly,
            NamePattern::Beginning(beginning) => name.starts_with(beginning),
        };
        let object =
            objects.iter().find(|object| object.kind == *kind && is_named(&object.name))?;
        let KernelObject { kind, name, of } = object;
        let kind = match kind {
            ObjectKind::Link => "link",
            ObjectKind::Table => "table",
            ObjectKind::Chain => "chain",
        };
        Some(PolicyEngine { name: engine, found: format!("{kind} {name}{of}") })
    })
}

fn links() -> Result<Vec<KernelObject>, EngineError> {
    let links = if_nameindex().map_err(EngineError::Links)?;
    let link = |name: String| KernelObject { kind: ObjectKind::Link, name, of: String::new() };
    Ok(links
        .iter()
        .map(|interface| link(interface.name().to_string_lossy().into_owned()))
        .collect())
}

fn tables_and_chains() -> Result<Vec<KernelObject>, NetlinkError> {
    let mut kernel = Kernel::open()?;
    let mut objects = kernel.tables(|table| {
        let of = format!(" of family {}", table.family()?);
        Some(KernelObject { kind: ObjectKind::Table, name: table.name()?.to_owned(), of })
    })?;
    objects.extend(kernel.chains(None, |chain| {
        let of = format!(" of table {} {}", chain.family()?, chain.table()?);
        Some(KernelObject { kind: ObjectKind::Chain, name: chain.name()?.to_owned(), of })
    })?);
    Ok(objects)
}

/// The chains of legacy iptables' filter table, which cannot be read through netlink.
fn legacy_chains(version: Family) -> Result<Vec<KernelObject>, IptablesError> {
    // Running iptables would create the table.
    if !legacy_tables(version).iter().any(|name| name == Table::Filter.as_str()) {
        return Ok(Vec::new());
    }
    let saved = Programs::installed(Variant::Legacy)?.saved(version, Table::Filter)?;
    let of = format!(" of table {} of legacy {}", Table::Filter, iptables_of(version));
    let chain = |name: &str| KernelObject {
        kind: ObjectKind::Chain,
        name: name.to_owned(),
        of: of.clone(),
    };
    let declared = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    Ok(declared.map(chain).collect())
}

fn iptables_of(version: Family) -> &'static str {
    match version {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}
