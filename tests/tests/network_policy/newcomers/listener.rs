//! What listens and asks in a new pod.

use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::eventually::observed;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::Pod;

use crate::prober::Prober;
use denizen_tests::packets::recorder::Recorder;

/// A pod's kernel asks for its gateway three times, one second apart.
const GATEWAY: Duration = Duration::from_secs(5);

/// What listens and asks in a pod whose ADD has returned.
pub struct Listener {
    pub(super) recorder: Recorder,
    pub(super) prober: Prober,
    pub(super) addresses: Vec<IpAddr>,
}

/// A pod that has just been added.
pub struct Newcomer {
    listener: Listener,
    pub pod: Pod,
}

impl Deref for Newcomer {
    type Target = Listener;

    fn deref(&self) -> &Listener {
        &self.listener
    }
}

impl Listener {
    /// Starts it in a pod that has these addresses.
    ///
    /// On an interface that is new on the node, `ptp` and `bridge` add the IPv6 gateway's address
    /// just before the pod is reachable. The kernel answers for the address a moment later. If the
    /// pod has asked for it in between, because it was sent something, it asks again after a
    /// second, firewall or not. What it sends meanwhile waits in a queue that is shorter than its
    /// answers to all who keep sending. So its questions wait until its kernel knows whom it asks.
    pub fn start(pod: &Netns, addresses: &[IpAddr]) -> Result<Self> {
        let recorder = Recorder::start(pod)?;
        let prober = Prober::start(pod)?;
        let unanswered = || pod.output("ip", &["-6", "neigh", "show", "nud", "incomplete"]);
        observed("its gateway's MAC address is known", GATEWAY, unanswered, String::is_empty)?;
        Ok(Self { recorder, prober, addresses: addresses.to_vec() })
    }

    /// It has heard nobody until now.
    pub fn forget(&self) {
        self.recorder.forget_all();
    }
}

impl Newcomer {
    /// Starts what listens and asks in it.
    pub fn start(pod: Pod) -> Result<Self> {
        Ok(Self { listener: Listener::start(&pod.netns, &pod.addresses)?, pod })
    }

    /// Ends what listens in it, as a runtime ends containers before it calls DEL.
    pub fn end(self) -> Pod {
        self.pod
    }
}
