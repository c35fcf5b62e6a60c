//! Why a rule exists.

/// Why a chain, a set or a rule exists: the doc comment is the whole story, for us; [`Why::text`]
/// is what an operator reads beside it on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// Packets that arrive here from pods and from outside enter the service rules before they are
    /// routed, since the endpoint decides the route.
    Arriving,
    /// Packets that this node itself sends to a service never pass prerouting.
    Sending,
    /// Source addresses can only be replaced once the route, and with it the address to use, is
    /// known.
    Leaving,
    /// The one place where a new connection's service is looked up.
    Dispatch,
    /// One lookup finds the service behind an address, protocol and port.
    FindService,
    /// A port of a cluster IP that no service has: the address is ours alone, so nobody else will
    /// answer.
    UnusedPort,
    /// A change may have come between the look for the service and that for the cluster IP: the
    /// service that it brought is there when its cluster IP is.
    FindServiceAgain,
    /// An address that cluster IPs are allocated from, and that no service has (or has not here,
    /// yet). No one else is there; silence lets the client try again until there is.
    Unallocated,
    /// Node ports answer on the node's own addresses only.
    OwnAddress,
    /// One lookup finds the service behind a node port, whatever the node's addresses are.
    FindNodePort,
    /// `externalTrafficPolicy: Local` binds only what comes from elsewhere, so this node's pods are
    /// let through to the ordinary rules. (What the node itself sends never gets here: it passes
    /// output.)
    PodsAreInside,
    /// Traffic from elsewhere to a service with `externalTrafficPolicy: Local` stays on this node
    /// and keeps its source address.
    StayOnNode,
    /// KEP-2450: a local pod's connection is answered through this node anyway, so it keeps its
    /// address.
    LocalPod,
    /// IP rules see a bridge as the input interface, never its port; only the bridge family does.
    TellPort,
    /// The mark may carry the bit already, from the pod's own side of the bridge or from a rule
    /// before.
    PortUnproven,
    /// This port is the recorded one of the pod that has this address.
    PodPort,
    /// KEP-2450's physdev mode: whatever comes in through a port of a bridge counts as a pod's.
    AnyPort,
    /// Frames that the bridge only forwards never reach the rules that read the bit; others should
    /// not see it.
    OnlyBridged,
    /// The bit was read, where the service was chosen; it is cleared so that it means nothing to
    /// others.
    ClearPortBit,
    /// Whoever is not a local pod gets the node's address as the source, so that the answer comes
    /// back through this node and its translation is undone.
    ComesFromElsewhere,
    /// An external frontend under policy Cluster: the endpoint may be on another node, which would
    /// answer the client directly.
    AnyNode,
    /// One of the service's endpoints, each as likely as the others.
    Choose,
    /// The slot drawn has no endpoint: draw again among one fewer, which keeps the choice uniform.
    ChooseAmongFewer,
    /// A packet that found no slot raced with a change. Dropped, it is sent again and looked up
    /// anew; let go, its connection would keep an untranslated conntrack entry for minutes.
    NeverUndone,
    /// Nobody serves it: the client should know at once.
    RefuseTcp,
    /// Nobody serves it: the client should know at once.
    Refuse,
    /// Others serve it, but policy keeps this node from them; the client's next try may be routed
    /// elsewhere.
    NoLocalEndpoint,
    /// A pod that calls a service and is handed to itself sees its own address as the client. It
    /// answers itself directly, nobody undoes the translation, and the connection hangs. With the
    /// node's address as the source, the answer comes back this way.
    Hairpin,
    /// `loadBalancerSourceRanges`: who may use the load balancer IP goes on to it.
    MayEnter,
    /// `loadBalancerSourceRanges`: everybody else's packets vanish.
    MayNotEnter,
    /// `loadBalancerSourceRanges` binds everybody, pods and this node included, and comes before
    /// anything else is decided.
    Restricted,
    /// `sessionAffinity: ClientIP`: whichever slot, its endpoint's number names the service port.
    WhichServicePort,
    /// `sessionAffinity: ClientIP`: the endpoint that the client got last.
    Recall,
    /// `sessionAffinity: ClientIP`: back to that endpoint, and the time begins anew.
    BackToLast,
    /// `sessionAffinity: ClientIP`: that endpoint is gone, so another one will be remembered.
    LastIsGone,
    /// `sessionAffinity: ClientIP`: one endpoint, and it is remembered.
    ChooseAndRemember,
    /// `sessionAffinity: ClientIP`: while the map that all clients share has room.
    Remember,
    /// `sessionAffinity: ClientIP`, and that map is full: whoever filled it may have forged its
    /// clients, but not those that come in where a pod of this node does, with its address.
    RememberPod,
    /// `sessionAffinity: ClientIP`, and that map is full: each service port has a budget of new
    /// clients, which a flood of another one does not touch.
    RememberWithinBudget,
    /// `sessionAffinity: ClientIP`, and the budget is used up: for so short a time that the flood
    /// is soon forgotten.
    RememberBriefly,
    /// `sessionAffinity: ClientIP`: all are full. Counted.
    NotRemembered,
    /// Not drawn, since a change came between, or not remembered: better an endpoint without memory
    /// than none.
    WithoutMemory,
    /// Session affinity borrowed the priority of a connection's first packet; queues should not see
    /// it.
    GiveBackPriority,
    /// Egress masquerade is for this node's pods, whom the input interface tells, and for the first
    /// packet of a connection: the translation then holds for all of it, and for its answers.
    PodsAlone,
    /// iptables: egress masquerade is asked for where nothing is admitted by it any more, and where
    /// it is still known which interface a packet came in through.
    BehindFilter,
    /// `nonMasqueradeCIDRs`: whoever is there knows the pods' own addresses.
    StaysInside,
    /// Elsewhere nobody knows the way back to a pod; the node's address is known.
    GoesOut,
    /// `--open-forward`: the connection is known for one of ours in another firewall's chain, where
    /// nothing else tells it from others: not its packets' mark, which only the first has, nor its
    /// addresses.
    Admitted,
    /// iptables, `--open-forward`: what no service's chain translated was marked in vain.
    NotAdmitted,
    /// `--open-forward`, in another firewall's chain: KEP-2450's one rule without a CIDR. Answers,
    /// and errors about connections, come from whatever address the endpoint has.
    AdmitAnswers,
    /// `--open-forward`, in another firewall's chain: what that firewall would drop, since it does
    /// not know that services are to be reached.
    AdmitServices,
    /// The mark was set where the service was chosen; it is cleared here so that it means nothing
    /// to others.
    MarkedAbove,
    /// iptables: where a chosen endpoint's connection is translated.
    ToEndpoint,
    /// `--masquerade-all`.
    MasqueradeAll,
    /// As [`Self::PodsAreInside`], for what the node itself sends; it may be sent on to another
    /// node, so it needs the node's own address in any case.
    NodeIsInside,
    /// iptables: the last of a chain, since the addresses of services come first.
    LastOfAll,
    /// iptables: one bit of the mark, as kube-proxy's.
    MarkForMasquerade,
    /// What nobody marked is not ours to masquerade.
    NotMarked,
    /// The mark means nothing after this, and the same packet may come by again, encapsulated.
    MarkDone,
    /// What connection tracking cannot place is not translated back either, and would reach the
    /// client from an address that it does not know: the client resets the connection (kubernetes
    /// #74839).
    Invalid,
    /// Where FORWARD drops by default, what a service admits must be let through.
    AdmitMarked,
    /// KEP-2450: what belongs to a connection that was admitted goes on, whatever its addresses.
    AdmitEstablished,
    /// Where INPUT drops by default, a load balancer must still reach the health-check node ports.
    HealthCheck,
    /// With `route_localnet` on, a neighbour could address what listens on the loopback interface
    /// alone.
    Martian,
    /// iptables, in kube-proxy's words: as [`Self::Arriving`] and [`Self::Sending`] in nat; in
    /// filter since nat cannot refuse.
    ServicePortals,
    /// The same for the frontends that lead in from outside; in filter since nat cannot refuse.
    ExternalPortals,
    /// iptables, in kube-proxy's words: as [`Self::Leaving`].
    PostroutingRules,
    /// iptables, in kube-proxy's words: what a service admits is let through where FORWARD drops by
    /// default.
    ForwardingRules,
    /// iptables, in kube-proxy's words: as [`Self::HealthCheck`].
    HealthPorts,
    /// iptables, in kube-proxy's words: as [`Self::Restricted`]; nat can only fail to translate, so
    /// filter drops.
    LoadBalancerFirewall,
}

impl Why {
    /// At most 100 bytes: the kernel's tools allow 128 in a comment, and the rule's id stands
    /// before it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Arriving => "services are chosen before routing: the endpoint decides the route",
            Self::Sending => "what this node itself sends does not pass prerouting",
            Self::Leaving => "the source is replaced when the route is known",
            Self::Dispatch => "looks up the service of a new connection",
            Self::FindService => "address, protocol and port name the service",
            Self::UnusedPort => "no service has this port, and nobody else answers on a cluster IP",
            Self::FindServiceAgain => {
                "the cluster IP is there now, and so is a service that came with it"
            }
            Self::Unallocated => "in a range of cluster IPs, but no service has it (yet)",
            Self::OwnAddress => "node ports answer on these addresses of the node",
            Self::FindNodePort => "protocol and port name the service",
            Self::PodsAreInside => "policy Local does not bind this node's own pods",
            Self::StayOnNode => {
                "policy Local: from elsewhere only to endpoints on this node, source kept"
            }
            Self::LocalPod => "a local pod is answered through this node anyway",
            Self::TellPort => {
                "tells the IP tables by a bit of the mark what came in through a pod's port"
            }
            Self::PortUnproven => {
                "whatever it says, it is not known yet through whose port this came in"
            }
            Self::PodPort => "the recorded port of the pod with this address",
            Self::AnyPort => "what comes in through a bridge's port counts as a pod's",
            Self::OnlyBridged => {
                "the bit is for this node's IP rules alone, and they do not see this"
            }
            Self::ClearPortBit => {
                "told by the bridge's table, and read where the service was chosen"
            }
            Self::ComesFromElsewhere => {
                "not a local pod: the answer must come back through this node"
            }
            Self::AnyNode => "policy Cluster: the endpoint may be on another node",
            Self::Choose => "one endpoint, each as likely as the others",
            Self::ChooseAmongFewer => "no endpoint in that slot: draw among fewer",
            Self::NeverUndone => {
                "raced with a change: the client's retransmission is looked up anew"
            }
            Self::RefuseTcp | Self::Refuse => "nobody serves it: say so at once",
            Self::NoLocalEndpoint => {
                "served elsewhere, not here: stay silent, the client may be routed anew"
            }
            Self::Hairpin => "a pod handed to itself must be answered through this node",
            Self::MayEnter => "loadBalancerSourceRanges: may use the load balancer IP",
            Self::MayNotEnter => "loadBalancerSourceRanges: may not use the load balancer IP",
            Self::Restricted => "loadBalancerSourceRanges bind everybody, before anything else",
            Self::WhichServicePort => {
                "session affinity: any endpoint's number tells the service port"
            }
            Self::Recall => "session affinity: the endpoint that the client got last",
            Self::BackToLast => "session affinity: back to it, and the time begins anew",
            Self::LastIsGone => "session affinity: it is gone; forget it and choose another",
            Self::ChooseAndRemember => {
                "session affinity: one endpoint, each as likely as the others"
            }
            Self::Remember => "session affinity: remembered while the map of all clients has room",
            Self::RememberPod => {
                "session affinity: that map is full; nobody can make up this node's pods"
            }
            Self::RememberWithinBudget => {
                "session affinity: that map is full; the service port has a budget"
            }
            Self::RememberBriefly => {
                "session affinity: the budget is used up; remembered for a short time"
            }
            Self::NotRemembered => "session affinity: no room to remember this client anywhere",
            Self::WithoutMemory => "session affinity: any endpoint is better than none",
            Self::GiveBackPriority => "session affinity borrowed the first packet's priority",
            Self::PodsAlone => "egress: first packets of this node's pods",
            Self::BehindFilter => {
                "egress: behind filter, and where the input interface is still known"
            }
            Self::StaysInside => "egress: pods keep their address towards this range",
            Self::GoesOut => "egress: who is elsewhere knows no way back to a pod",
            Self::Admitted => "known by this where another firewall's FORWARD would drop it",
            Self::NotAdmitted => "no service's: nothing above has translated it",
            Self::AdmitAnswers => "answers of connections that were let in",
            Self::AdmitServices => "connections to services",
            Self::MarkedAbove => "marked where the service was chosen",
            Self::ToEndpoint => "the connection goes to this endpoint",
            Self::MasqueradeAll => "masquerade-all was asked for",
            Self::NodeIsInside => {
                "policy Local does not bind this node itself; it must be answered here"
            }
            Self::LastOfAll => {
                "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
            }
            Self::MarkForMasquerade => "one bit of the mark asks for masquerade",
            Self::NotMarked => "nothing asked for masquerade",
            Self::MarkDone => "the mark is cleared, so that it means nothing to others",
            Self::Invalid => "would reach the client untranslated, and reset its connection",
            Self::AdmitMarked => "admitted by a service",
            Self::AdmitEstablished => "belongs to a connection that was admitted",
            Self::HealthCheck => "a load balancer asks here whether this node serves",
            Self::Martian => "loopback addresses are for this node alone",
            Self::ServicePortals => "kubernetes service portals",
            Self::ExternalPortals => "kubernetes externally-visible service portals",
            Self::PostroutingRules => "kubernetes postrouting rules",
            Self::ForwardingRules => "kubernetes forwarding rules",
            Self::HealthPorts => "kubernetes health check service ports",
            Self::LoadBalancerFirewall => "kubernetes load balancer firewall",
        }
    }
}
