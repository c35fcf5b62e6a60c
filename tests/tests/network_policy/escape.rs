//! Every way by which a pod's packet can reach another pod, its node or the wire past its policies,
//! as far as we know: the pods at both ends deny everything. Each way is shown to be one first:
//! without policies it leads there.
//!
//! | what | file |
//! | --- | --- |
//! | frames from port to port of a bridge | `switched` |
//! | packets that the node routes, or answers itself | `routed` |
//! | a pod that passes for another pod, for the node or for a router | `identity` |
//! | what the node or a neighbour hands to another pod than its address says | `delivered` |
//! | what a pod may do all the same, and what is permitted by name | `permitted` |
//! | an address that no policy can tell apart | `unlabelled` |
//! | packets in packets, and errors about others' connections | `indirect` |

mod delivered;
mod identity;
mod indirect;
mod permitted;
mod routed;
mod switched;
mod unlabelled;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::kernel::ctnetlink;
use denizen_tests::node::cni::POD_INTERFACE;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::BRIDGE;
use denizen_tests::packets::frame::{self, FrameSocket, Mac};
use denizen_tests::policy::{LabelSelector, NetworkPolicy};

use crate::regressions::test_cluster::TestCluster;

/// A processor's queue for packets is shared with all that goes on beside: what finds it full is
/// lost.
const BURST: usize = 32;
/// How long the queue may take for them.
const PAUSE: Duration = Duration::from_millis(2);
/// What has not come by then never will.
const ARRIVAL_TIMEOUT: Duration = Duration::from_millis(700);

/// A port that nobody listens at.
const PORT: u16 = 4000;

/// One end.
#[derive(Debug, Clone, Copy)]
struct End {
    mac: Mac,
    v4: IpAddr,
    v6: IpAddr,
    link_local: IpAddr,
}

impl End {
    fn of(cluster: &TestCluster, pod: &str) -> Result<Self> {
        let [v4, v6] = cluster.addresses(pod);
        let mac = frame::mac_of(cluster.netns(pod), POD_INTERFACE)?;
        Ok(Self { mac, v4, v6, link_local: frame::link_local(mac).into() })
    }

    /// The node, as bridged pods see it.
    fn bridge(cluster: &TestCluster) -> Result<Self> {
        let mac = frame::mac_of(cluster.node(0), BRIDGE)?;
        let link_local = frame::link_local(mac).into();
        Ok(Self { mac, v4: "10.10.1.1".parse()?, v6: "fd00:10:1::1".parse()?, link_local })
    }

    /// The node, as a routed pod on it sees it.
    fn gateway(cluster: &TestCluster, pod: &str) -> Result<Self> {
        let (pod, _) = cluster.play.pod(pod);
        let mac = frame::mac_of(cluster.node(0), pod.host_interface())?;
        let link_local = frame::link_local(mac).into();
        Ok(Self { mac, v4: "10.11.1.1".parse()?, v6: "fd00:11:1::1".parse()?, link_local })
    }
}

fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, PORT)
}

/// Frames under the name of the way that they try.
#[derive(Debug, Default)]
struct EscapeAttempts(Vec<EscapeAttempt>);

#[derive(Debug, Clone)]
struct EscapeAttempt {
    name: String,
    /// A text that no other frame has.
    marker: String,
    frame: Vec<u8>,
}

impl EscapeAttempts {
    /// `frame` is made with the text that is looked for at the other end.
    fn add(&mut self, name: impl Into<String>, frame: impl FnOnce(&[u8]) -> Vec<u8>) {
        let marker = format!("<way {:04} of escape>", self.0.len());
        let frame = frame(marker.as_bytes());
        self.0.push(EscapeAttempt { name: name.into(), marker, frame });
    }

    /// Sends all of them. Returns the names of those that are heard.
    fn lead(&self, from: &FrameSocket, to: &FrameSocket) -> Result<BTreeSet<&str>> {
        to.drain()?;
        for burst in self.0.chunks(BURST) {
            for attempt in burst {
                from.send(&attempt.frame).with_context(|| attempt.name.clone())?;
            }
            sleep(PAUSE);
        }
        let markers: Vec<_> = self.0.iter().map(|attempt| attempt.marker.clone()).collect();
        let heard = to.heard(&markers, ARRIVAL_TIMEOUT)?;
        Ok(heard.into_iter().map(|number| &*self.0[number].name).collect())
    }

    /// As [`Self::lead`], where ways are open: what is not heard is sent once more, for a busy
    /// machine loses frames.
    fn lead_patiently(&self, from: &FrameSocket, to: &FrameSocket) -> Result<BTreeSet<&str>> {
        let mut heard = self.lead(from, to)?;
        let is_lost = |attempt: &&EscapeAttempt| !heard.contains(&*attempt.name);
        let lost = Self(self.0.iter().filter(is_lost).cloned().collect());
        if !lost.0.is_empty() {
            let again = lost.lead(from, to)?;
            heard.extend(self.names().into_iter().filter(|name| again.contains(name)));
        }
        Ok(heard)
    }

    /// Those whose names do not have these words.
    fn without(mut self, words: &str) -> Self {
        self.0.retain(|attempt| !attempt.name.contains(words));
        self
    }

    fn names(&self) -> BTreeSet<&str> {
        self.0.iter().map(|attempt| &*attempt.name).collect()
    }
}

/// A text that is looked for, with 700 bytes behind it.
fn long(marker: &[u8]) -> Vec<u8> {
    [marker, &[b'.'; 700]].concat()
}

fn open(netns: &Netns) -> Result<FrameSocket> {
    FrameSocket::open(netns, POD_INTERFACE)
}

/// Namespace x denies everything.
fn deny_all() -> NetworkPolicy {
    NetworkPolicy::new("x", "deny", LabelSelector::default()).ingress([]).egress([])
}

/// These policies hold from now on, for what was under way before too.
fn put(cluster: &mut TestCluster, policies: impl IntoIterator<Item = NetworkPolicy>) -> Result<()> {
    cluster.put(policies)?;
    (0..2).try_for_each(|node| cluster.node(node).run(ctnetlink::forget)?)
}

/// No way leads there.
fn none_leads(
    attempts: &EscapeAttempts,
    from: &FrameSocket,
    to: &FrameSocket,
    when: &str,
) -> Result<()> {
    let lead = attempts.lead(from, to)?;
    ensure!(lead.is_empty(), "{when}: {lead:#?}");
    Ok(())
}
