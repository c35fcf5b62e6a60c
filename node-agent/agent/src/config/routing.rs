//! The flags of routes to other nodes' pods, and of announcements.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnetwork::IpNetwork;

use super::ConfigError;
use denizen_plan::{AnnounceSettings, AnnouncedPods, FrontendKind};
use denizen_routing::bird::BirdConfig;
use denizen_routing::{AnnounceConfig, RoutingSettings};
use denizen_text::duration;

/// `--routing-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoutingMode {
    /// Others route.
    Off,
    /// Routes to the other nodes' pod CIDRs through their InternalIPs.
    Direct,
    /// Announcements for a routing daemon, in a table of the kernel.
    Table,
    /// The same, and BIRD's configuration.
    Bird,
}

/// `--announce-pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AnnouncePods {
    /// None.
    Off,
    /// The Node's podCIDRs.
    NodeCidrs,
    /// Each recorded pod by itself.
    Exact,
    /// The podCIDRs, and each recorded pod outside them.
    Auto,
}

/// `--announce-services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AnnounceServices {
    /// `status.loadBalancer.ingress`.
    LoadBalancerIps,
    /// `spec.externalIPs`.
    ExternalIps,
    /// `spec.clusterIPs`.
    ClusterIps,
}

/// The flags, as written.
#[derive(Debug, Clone, Args)]
pub struct RoutingArgs {
    /// How pods of other nodes are reached. off: another program routes. direct: routes to each
    /// Node's podCIDRs lead through its InternalIP, where that is on a network of this node's.
    /// table: a routing daemon routes, and learns from --announce-table what this node announces.
    /// bird: BIRD routes, and --bird configures it
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub routing_mode: RoutingMode,

    /// How BIRD speaks BGP, in JSON. In the file it is the section routing.bird
    #[arg(long, value_name = "JSON", value_parser = BirdConfig::parse)]
    pub bird: Option<BirdConfig>,

    /// The kernel's routing table of announcements. Nothing is looked up in it: no `ip rule` may
    /// lead there
    #[arg(
        long,
        value_name = "1..252",
        default_value = "219",
        value_parser = clap::value_parser!(u32).range(1..=252)
    )]
    pub announce_table: u32,

    /// Which pods are announced: node-cidrs: the Node's podCIDRs. exact: each pod. auto: the
    /// podCIDRs, and each pod outside them
    #[arg(long, value_enum, value_name = "WHICH", default_value = "auto")]
    pub announce_pods: AnnouncePods,

    /// Which addresses of Services are announced. Load balancer IPs and external IPs within
    /// --announce-ranges, cluster IPs within the ServiceCIDRs
    #[arg(long, value_enum, value_name = "KIND,…", value_delimiter = ',')]
    pub announce_services: Vec<AnnounceServices>,

    /// The ranges of load balancer IPs and external IPs that may be announced
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub announce_ranges: Vec<IpNetwork>,

    /// Maximum number of announcements
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub announce_most: usize,

    /// Maximum number of pods that have announcements of their own
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub announce_most_pods: usize,

    /// Announce also from a node with the label
    /// node.kubernetes.io/exclude-from-external-load-balancers
    #[arg(long)]
    pub announce_from_excluded: bool,

    /// The keys of taints by which a node drains, beside the cluster autoscaler's
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    pub drain_taints: Vec<String>,

    /// How long a draining node still announces what others serve too, with less preference
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub drain_wait: Duration,
}

impl RoutingArgs {
    /// Whether routing is on. Then the other Nodes are followed.
    pub(super) fn is_on(&self) -> bool {
        match self.routing_mode {
            RoutingMode::Off => false,
            RoutingMode::Direct | RoutingMode::Table | RoutingMode::Bird => true,
        }
    }

    /// Whether announcements are on. They are decided from services.
    pub(super) fn announces(&self) -> bool {
        match self.routing_mode {
            RoutingMode::Off | RoutingMode::Direct => false,
            RoutingMode::Table | RoutingMode::Bird => true,
        }
    }

    /// Checks the flags.
    ///
    /// # Errors
    /// [`ConfigError::NoAnnounceRanges`], [`ConfigError::NoBird`].
    pub fn check(&self) -> Result<RoutingSettings, ConfigError> {
        match self.routing_mode {
            RoutingMode::Off => Ok(RoutingSettings::Off),
            RoutingMode::Direct => Ok(RoutingSettings::Direct),
            RoutingMode::Table => Ok(RoutingSettings::Table(Box::new(self.announced(None)?))),
            RoutingMode::Bird => {
                let bird = self.bird.clone().ok_or(ConfigError::NoBird)?;
                Ok(RoutingSettings::Table(Box::new(self.announced(Some(bird))?)))
            }
        }
    }

    fn announced(&self, bird: Option<BirdConfig>) -> Result<AnnounceConfig, ConfigError> {
        let peers = bird.iter().flat_map(|bird| &bird.peers).map(|peer| peer.address.ip());
        Ok(AnnounceConfig {
            table: self.announce_table,
            settings: AnnounceSettings { peers: peers.collect(), ..self.settings()? },
            drain_wait: self.drain_wait,
            bird,
        })
    }

    fn settings(&self) -> Result<AnnounceSettings, ConfigError> {
        let kind = |kind: &AnnounceServices| match kind {
            AnnounceServices::LoadBalancerIps => FrontendKind::LoadBalancerIp,
            AnnounceServices::ExternalIps => FrontendKind::ExternalIp,
            AnnounceServices::ClusterIps => FrontendKind::ClusterIp,
        };
        let kinds: BTreeSet<FrontendKind> = self.announce_services.iter().map(kind).collect();
        let is_requested = |kind: &FrontendKind| *kind != FrontendKind::ClusterIp;
        if self.announce_ranges.is_empty() && kinds.iter().any(is_requested) {
            return Err(ConfigError::NoAnnounceRanges);
        }
        Ok(AnnounceSettings {
            pods: match self.announce_pods {
                AnnouncePods::Off => AnnouncedPods::Off,
                AnnouncePods::NodeCidrs => AnnouncedPods::NodeCidrs,
                AnnouncePods::Exact => AnnouncedPods::Exact,
                AnnouncePods::Auto => AnnouncedPods::Auto,
            },
            kinds,
            ranges: self.announce_ranges.clone(),
            most: self.announce_most,
            most_pods: self.announce_most_pods,
            ignores_exclusion: self.announce_from_excluded,
            drain_taints: self.drain_taints.clone(),
            peers: BTreeSet::new(),
        })
    }
}
