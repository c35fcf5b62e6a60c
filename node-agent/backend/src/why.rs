//! Why a rule exists.

/// Why a chain, a set or a rule exists. The doc comment is the full reason; [`Why::text`] is the
/// comment that an operator reads on the node.
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
    /// One lookup finds the service of an address, protocol and port.
    FindService,
    /// A port of a cluster IP that no service has. Nobody else has the address, so nobody would
    /// answer.
    UnusedPort,
    /// A commit between the lookup of the service and the lookup of its cluster IP may have added
    /// both. If the cluster IP is there, so is the service.
    FindServiceAgain,
    /// An address from a range of cluster IPs that no proxy of this node has translated: no service
    /// has it, or not yet on this node. Nobody would answer. The packet is dropped, not refused, so
    /// that the client tries again.
    Unallocated,
    /// Another proxy may serve Services of its own (`service.kubernetes.io/service-proxy-name`). So
    /// the nat chains do not drop packets to an address that no service of ours has: this chain
    /// comes after every proxy's translation.
    StillUntranslated,
    /// Node ports answer on the node's own addresses only.
    OwnAddress,
    /// With node ports at every address of the node, the kernel is asked whether an address is the
    /// node's own, and loopback is.
    LoopbackUnserved,
    /// One lookup finds the service of a node port, on whichever address of the node.
    FindNodePort,
    /// Every packet enters the chain; it only handles those from outside to a service with policy
    /// Local.
    AskLocalPolicy,
    /// `externalTrafficPolicy: Local` restricts only traffic from outside, so local pods go on to
    /// the ordinary rules. (What the node itself sends passes output, not this chain.)
    PodsAreInside,
    /// Traffic from outside to a service with `externalTrafficPolicy: Local` stays on this node and
    /// keeps its source address.
    StayOnNode,
    /// KEP-2450: a local pod's connection is answered through this node anyway, so it keeps its
    /// address.
    LocalPod,
    /// IP rules see a bridge as the input interface. Only the bridge family sees its port, and
    /// passes it on as a bit of the mark.
    TellPort,
    /// The mark may have the bit already: from the pod's side of the bridge, or from an earlier
    /// rule.
    PortUnproven,
    /// This port is the recorded one of the pod that has this address.
    PodPort,
    /// KEP-2450's physdev mode: a packet from any port of a bridge counts as a pod's.
    AnyPort,
    /// Frames that the bridge only forwards never reach the rules that read the bit. Rules of
    /// others must not see it.
    OnlyBridged,
    /// The service rules have read the bit. Rules of others must not see it.
    ClearPortBit,
    /// Every packet enters the chain, also those of local pods.
    AskWhoSends,
    /// If the sender is not a local pod, the source becomes the node's address, so that the answer
    /// comes back through this node and is translated back.
    ComesFromElsewhere,
    /// An external frontend under policy Cluster: the endpoint may be on another node, which would
    /// answer the client directly.
    AnyNode,
    /// One of the service's endpoints, each as likely as the others.
    Choose,
    /// The slot has no endpoint: draw again among one fewer or, in a large class, first among as
    /// many. That keeps the choice uniform.
    ChooseAmongFewer,
    /// A packet that found no slot raced with a change. If it is dropped, the client sends it again
    /// and it is looked up again. If it passed, its connection would keep an untranslated conntrack
    /// entry for minutes.
    LookupRaced,
    /// The service has no endpoints: the client should know at once.
    RefuseTcp,
    /// As [`Self::RefuseTcp`], for the other protocols.
    Refuse,
    /// Other nodes have endpoints, but policy Local forbids them here. The client's next try may be
    /// routed to such a node.
    NoLocalEndpoint,
    /// Notes the flows that are dropped or refused, so that they are known when somebody asks
    /// later. In a rule of its own before the one that drops: when the set is full, the kernel goes
    /// on with the next rule.
    NoteFlow,
    /// `--service-metrics`. The packet still has the address and port that it was sent to.
    CountConnection,
    /// A pod that reaches itself through a service sees its own address as the client. It answers
    /// itself directly, so the answer is not translated back and the connection hangs. With the
    /// node's address as the source, the answer comes back through this node.
    Hairpin,
    /// `loadBalancerSourceRanges`: this source may use the load balancer IP.
    MayEnter,
    /// `loadBalancerSourceRanges`: all other sources are dropped.
    MayNotEnter,
    /// `loadBalancerSourceRanges` apply to all clients, pods and this node included, and are
    /// checked before anything else.
    Restricted,
    /// `sessionAffinity: ClientIP`: the endpoint in any slot has a number that names the service
    /// port.
    WhichServicePort,
    /// `sessionAffinity: ClientIP`: the endpoint that the client got last.
    Recall,
    /// `sessionAffinity: ClientIP`: the endpoint that the client got last is used again, and the
    /// time-out restarts.
    BackToLast,
    /// `sessionAffinity: ClientIP`: the endpoint that the client got last is gone, so another one
    /// will be remembered.
    LastIsGone,
    /// `sessionAffinity: ClientIP`: one endpoint, which is remembered.
    ChooseAndRemember,
    /// `sessionAffinity: ClientIP`: while the map that all clients share has room.
    Remember,
    /// `sessionAffinity: ClientIP`, and the map that all clients share is full. It may be full of
    /// forged clients. Local pods cannot be forged: input interface and source address are those of
    /// their record.
    RememberPod,
    /// `sessionAffinity: ClientIP`, and the map that all clients share is full. Each service port
    /// has a budget of new clients, so that a flood of one leaves the others alone.
    RememberWithinBudget,
    /// `sessionAffinity: ClientIP`, and the budget is used up: remembered so briefly that a flood
    /// is soon forgotten.
    RememberBriefly,
    /// `sessionAffinity: ClientIP`: all maps are full. Counted.
    NotRemembered,
    /// The client is not remembered, or its endpoint was removed meanwhile: any endpoint is better
    /// than none.
    WithoutMemory,
    /// Session affinity keeps a number in the priority of a connection's first packet. Queues must
    /// not see it.
    GiveBackPriority,
    /// Egress masquerade is for local pods, which the input interface shows, and for the first
    /// packet of a connection: the translation holds for the rest, and for its answers.
    PodsAlone,
    /// iptables: behind the filter table no rule accepts packets by this mark, and the input
    /// interface is still known.
    BehindFilter,
    /// `nonMasqueradeCIDRs`: these destinations have a route back to the pods' own addresses.
    StaysInside,
    /// Other destinations have no route back to a pod, but one to the node.
    GoesOut,
    /// `--open-forward`: another firewall's chain recognises services' connections by this bit of
    /// the conntrack mark. The packet mark is only on the first packet, and addresses do not
    /// identify such connections.
    Admitted,
    /// `--open-forward`, iptables and host ports: nothing translated this connection.
    NotAdmitted,
    /// `--open-forward`, in another firewall's chain: KEP-2450's one rule without a CIDR. Answers,
    /// and errors about connections, come from whatever address the endpoint has.
    AdmitAnswers,
    /// `--open-forward`, in another firewall's chain, which would drop connections to services.
    AdmitServices,
    /// The service rules set the mark. It is cleared here: rules of others must not see it.
    MarkedAbove,
    /// iptables: translates the connection to the chosen endpoint.
    ToEndpoint,
    /// `--masquerade-all`.
    MasqueradeAll,
    /// As [`Self::PodsAreInside`], for what the node itself sends. The endpoint may be on another
    /// node, so the source must be an address to which that node answers.
    NodeIsInside,
    /// iptables: the last rule of its chain, since the addresses of services come first.
    LastOfAll,
    /// iptables: one bit of the mark, as kube-proxy's.
    MarkForMasquerade,
    /// A packet without the mark is not ours to masquerade.
    NotMarked,
    /// The mark means nothing after this, and the same packet may pass again, encapsulated.
    MarkDone,
    /// A packet that connection tracking cannot assign to a connection is not translated back. It
    /// would reach the client from an address that the client does not know, and the client would
    /// reset the connection (kubernetes #74839).
    Invalid,
    /// Where FORWARD drops by default, services' connections must be accepted.
    AdmitMarked,
    /// KEP-2450: packets of an accepted connection are accepted, whatever their addresses.
    AdmitEstablished,
    /// Where INPUT drops by default, a load balancer must still reach the health-check node ports.
    HealthCheck,
    /// A connection to a cluster IP that connection tracking knew before the address had rules. Its
    /// packets pass no nat rule any more. With the address routed to this node, a port of the
    /// node's own would answer its next packets, or IPVS would forward them unmasqueraded. The
    /// client's next connection is a new one.
    Untranslated,
    /// Another backend serves, or none, and this address is still routed to this node, for
    /// connections that IPVS carries. A new connection would be forwarded unmasqueraded, or a port
    /// of the node's own would answer.
    OnlyOldConnections,
    /// A service's address that is routed to this node for IPVS belongs to no link. If this node
    /// answered ARP for it, neighbours would send here what another machine should serve, for
    /// instance a node for which MetalLB announces the address.
    NoNeighbour,
    /// Host ports come after all programs' rules for services, since services' addresses and ports
    /// are allocated.
    HostPorts,
    /// The one place where the pod of a host port is looked up.
    FindHostPort,
    /// A host port with this hostIP comes before one without a hostIP.
    HostPortAtAddress,
    /// A service has the port at this address. If it has no endpoints, or the client may not use
    /// it, nothing has translated the packet, and it must not reach a pod either.
    HostPortTaken,
    /// A host port without a hostIP answers on the addresses of the node, and on no service's.
    HostPortAtAny,
    /// What the node itself sends to 127.0.0.0/8. IPv6 has no `route_localnet`.
    HostPortOnLoopback,
    /// A packet from 127.0.0.0/8 cannot leave the node with that source.
    FromLoopback,
    /// With `route_localnet` on, a neighbour could reach programs that listen on loopback only.
    Martian,
    /// iptables, in kube-proxy's words: as [`Self::Arriving`] and [`Self::Sending`] in nat; in
    /// filter since nat cannot refuse.
    ServicePortals,
    /// As [`Self::ServicePortals`], for frontends for traffic from outside; in filter since nat
    /// cannot refuse.
    ExternalPortals,
    /// iptables, in kube-proxy's words: as [`Self::Leaving`].
    PostroutingRules,
    /// iptables, in kube-proxy's words: accepts services' connections where FORWARD drops by
    /// default.
    ForwardingRules,
    /// iptables, in kube-proxy's words: as [`Self::HealthCheck`].
    HealthPorts,
    /// iptables, in kube-proxy's words: as [`Self::Restricted`]; nat can only fail to translate, so
    /// filter drops.
    LoadBalancerFirewall,
}

impl Why {
    /// The comment on the node, at most 100 bytes: nft allows 128, and the rule's id comes first.
    ///
    /// `trace` shows it for a packet that the rule matched, so it is true of every such packet. The
    /// text of a rule that sends packets to a chain says what that chain tests.
    pub fn text(self) -> &'static str {
        match self {
            Self::Arriving => "services are chosen before routing: the endpoint decides the route",
            Self::Sending => "what this node itself sends does not pass prerouting",
            Self::Leaving => "the source is replaced when the route is known",
            Self::Dispatch => "looks up the service of a new connection",
            Self::FindService => "address, protocol and port name the service",
            Self::UnusedPort => "no service has this port, and nobody else answers on a cluster IP",
            Self::FindServiceAgain => {
                "looks again: a service may have been added between the first lookup and this one"
            }
            Self::Unallocated => {
                "in a range of cluster IPs, and no proxy of this node has translated it (yet)"
            }
            Self::StillUntranslated => {
                "behind the translation of every proxy: what nobody has translated"
            }
            Self::OwnAddress => "node ports answer on these addresses of the node",
            Self::LoopbackUnserved => "loopback serves no node ports unless asked for",
            Self::FindNodePort => "protocol and port name the service",
            Self::AskLocalPolicy => "asks whether policy Local keeps the connection on this node",
            Self::PodsAreInside => "policy Local does not restrict local pods",
            Self::StayOnNode => {
                "policy Local: traffic from outside goes only to endpoints on this node, source kept"
            }
            Self::LocalPod => "no masquerade: a local pod is answered through this node anyway",
            Self::TellPort => {
                "sets the bridge-port bit of the mark for packets from a pod's port; the IP tables read it"
            }
            Self::PortUnproven => "clears the bridge-port bit: the sender may have set it",
            Self::PodPort => "the recorded port of the pod with this address",
            Self::AnyPort => {
                "--detect-local bridge-port: a packet from any bridge port is from a local pod"
            }
            Self::OnlyBridged => {
                "clears the bridge-port bit: this frame is only bridged and never reaches the IP rules"
            }
            Self::ClearPortBit => "clears the bridge-port bit: the service rules have read it",
            Self::AskWhoSends => {
                "asks whether the sender is a local pod: all others are masqueraded"
            }
            Self::ComesFromElsewhere => {
                "not a local pod: the answer must come back through this node"
            }
            Self::AnyNode => "policy Cluster: the endpoint may be on another node",
            Self::Choose => "one endpoint, each as likely as the others",
            Self::ChooseAmongFewer => {
                "earlier draws found no endpoint: one of fewer, each as likely as the others"
            }
            Self::LookupRaced => {
                "dropped: the lookup raced with a change; the client's retransmission is looked up again"
            }
            Self::RefuseTcp | Self::Refuse => "no endpoints: refuse at once",
            Self::NoLocalEndpoint => {
                "policy Local, no endpoint on this node: drop; a retry may be routed to another node"
            }
            Self::CountConnection => "--service-metrics: counts connections to services",
            Self::NoteFlow => "notes whose packets are dropped or refused, for 15 minutes",
            Self::Hairpin => {
                "hairpin: a pod that reaches itself must be answered through this node"
            }
            Self::MayEnter => "loadBalancerSourceRanges: may use the load balancer IP",
            Self::MayNotEnter => "loadBalancerSourceRanges: may not use the load balancer IP",
            Self::Restricted => {
                "loadBalancerSourceRanges apply to all clients, and are checked first"
            }
            Self::WhichServicePort => {
                "session affinity: finds the service port's number through any of its endpoints"
            }
            Self::Recall => "session affinity: the endpoint that the client got last",
            Self::BackToLast => {
                "session affinity: use the remembered endpoint and restart the time-out"
            }
            Self::LastIsGone => "session affinity: the remembered endpoint is gone; choose another",
            Self::ChooseAndRemember => {
                "session affinity: one endpoint, each as likely as the others"
            }
            Self::Remember => "session affinity: remembered while the map of all clients has room",
            Self::RememberPod => {
                "session affinity: map affinity is full; pods, which nobody can forge, use the reserve"
            }
            Self::RememberWithinBudget => {
                "session affinity: map affinity is full; in the service port's budget, use the reserve"
            }
            Self::RememberBriefly => {
                "session affinity: the budget is used up; remembered for a short time"
            }
            Self::NotRemembered => "session affinity: no room to remember this client anywhere",
            Self::WithoutMemory => "session affinity: any endpoint is better than none",
            Self::GiveBackPriority => "clears the packet priority that session affinity used",
            Self::PodsAlone => "egress: first packets of local pods",
            Self::BehindFilter => {
                "egress: after the filter table, and where the input interface is still known"
            }
            Self::StaysInside => "egress: pods keep their address towards this range",
            Self::GoesOut => {
                "egress: outside these ranges there is no route back to a pod: masquerade"
            }
            Self::Admitted => {
                "sets the conntrack mark bit by which --open-forward accepts this connection"
            }
            Self::NotAdmitted => {
                "clears the conntrack mark bit: nothing translated this connection"
            }
            Self::AdmitAnswers => "accepts answers of accepted connections",
            Self::AdmitServices => "accepts connections to services and host ports",
            Self::MarkedAbove => "masquerades what the service rules marked",
            Self::ToEndpoint => "the connection goes to this endpoint",
            Self::MasqueradeAll => "--masquerade-all: masquerades connections to every cluster IP",
            Self::NodeIsInside => {
                "policy Local does not restrict this node; masqueraded, so that answers come back here"
            }
            Self::LastOfAll => {
                "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
            }
            Self::MarkForMasquerade => "one bit of the mark asks for masquerade",
            Self::NotMarked => "nothing asked for masquerade",
            Self::MarkDone => "the mark is cleared, so that it means nothing to others",
            Self::Invalid => {
                "drops invalid packets: untranslated, they would reset the client's connection"
            }
            Self::AdmitMarked => "admitted by a service",
            Self::AdmitEstablished => "belongs to a connection that was admitted",
            Self::HealthCheck => "a load balancer asks here whether this node serves",
            Self::HostPorts => "host ports come behind the rules for services",
            Self::FindHostPort => "looks up the pod of a host port",
            Self::HostPortAtAddress => "address, protocol and port name the pod: its hostIP",
            Self::HostPortTaken => "a service has the port at this address, and comes first",
            Self::HostPortAtAny => {
                "without a hostIP, protocol and port name the pod at the node's addresses"
            }
            Self::HostPortOnLoopback => "the node's own connections to 127.0.0.0/8",
            Self::FromLoopback => {
                "a packet from 127.0.0.0/8 cannot leave the node with that source"
            }
            Self::Martian => "loopback addresses are for this node alone",
            Self::Untranslated => {
                "a connection from before the rules, which no rule translates any more"
            }
            Self::OnlyOldConnections => {
                "the backend ipvs has been left: its virtual servers get no new connections"
            }
            Self::NoNeighbour => {
                "no ARP answer: the address is routed here for IPVS and belongs to no link"
            }
            Self::ServicePortals => "kubernetes service portals",
            Self::ExternalPortals => "kubernetes externally-visible service portals",
            Self::PostroutingRules => "kubernetes postrouting rules",
            Self::ForwardingRules => "kubernetes forwarding rules",
            Self::HealthPorts => "kubernetes health check service ports",
            Self::LoadBalancerFirewall => "kubernetes load balancer firewall",
        }
    }
}
