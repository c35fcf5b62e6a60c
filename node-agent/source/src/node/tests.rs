//! These tests make their own network namespaces, so they need root.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;

use super::*;
use crate::running::{LONG, RunningSource, in_runtime};
use nix::sched::{CloneFlags, unshare};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags};
use rtnetlink::{LinkUnspec, LinkVeth, new_connection};

type LinksReceiver = latest::Receiver<Arc<[Link]>>;

fn start() -> (RunningSource<()>, LinksReceiver) {
    let (shown, links) = latest::channel(Arc::from([]));
    (RunningSource::start(|outlet| run(outlet, shown)), links)
}

/// The next addresses that the source sends.
async fn sent(source: &mut RunningSource<()>) -> Vec<NodeAddress> {
    let batch = source.batch().await;
    match batch.as_slice() {
        [Event::Addresses(addresses), ..] => addresses.clone(),
        other => panic!("not addresses: {other:?}"),
    }
}

/// Waits until the source sends these addresses.
async fn addresses(source: &mut RunningSource<()>, expected: &[&str]) {
    while shown(&sent(source).await) != expected {}
}

fn shown(addresses: &[NodeAddress]) -> Vec<String> {
    addresses.iter().map(|found| format!("{}@{}", found.address, found.interface)).collect()
}

/// Runs a test in a new network namespace, on a thread of its own, since a thread cannot leave it
/// again.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root, for a network namespace");
        in_runtime(test());
    });
    thread.join().unwrap();
}

/// Changes the kernel's links and addresses.
struct TestKernel {
    handle: Handle,
}

impl TestKernel {
    fn open() -> Self {
        let (connection, handle, _) = new_connection().unwrap();
        tokio::spawn(connection);
        Self { handle }
    }

    async fn index(&self, name: &str) -> u32 {
        let mut links = pin!(self.handle.link().get().match_name(name.to_owned()).execute());
        links.next().await.unwrap().unwrap().header.index
    }

    async fn set(&self, message: LinkMessage) {
        self.handle.link().set(message).execute().await.unwrap();
    }

    async fn up(&self, name: &str) {
        self.set(LinkUnspec::new_with_index(self.index(name).await).up().build()).await;
    }

    async fn add_veth(&self, name: &str, peer: &str) {
        let message = LinkVeth::new(name, peer).build();
        self.handle.link().add(message).execute().await.unwrap();
    }

    async fn remove_link(&self, name: &str) {
        let index = self.index(name).await;
        self.handle.link().del(index).execute().await.unwrap();
    }

    /// With duplicate detection, as for IPv6.
    async fn add_unsure(&self, name: &str, address: &str, length: u8) {
        let request = self.handle.address().add(self.index(name).await, ip(address), length);
        request.execute().await.unwrap();
    }

    async fn add(&self, name: &str, address: &str, length: u8) {
        let mut request = self.handle.address().add(self.index(name).await, ip(address), length);
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        request.execute().await.unwrap();
    }

    async fn remove(&self, name: &str, address: &str, length: u8) {
        let mut message = AddressMessage::default();
        message.header.index = self.index(name).await;
        message.header.prefix_len = length;
        message.header.family = AddressFamily::Inet;
        message.attributes.push(AddressAttribute::Local(ip(address)));
        self.handle.address().del(message).execute().await.unwrap();
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits until the links have these names, and returns them.
async fn named(links: &mut LinksReceiver, expected: &[&str]) -> Arc<[Link]> {
    let matches =
        |links: &Arc<[Link]>| links.iter().map(|link| &*link.name).eq(expected.iter().copied());
    let found = timeout(LONG, links.wait_for(matches)).await;
    found.expect("published in time").expect("still running").clone()
}

#[test]
fn addresses_are_sent_as_they_come_and_go() {
    in_namespace(|| async {
        let kernel = TestKernel::open();
        let (mut source, _links) = start();
        assert_eq!(
            source.batch().await,
            [Event::Addresses(vec![]), Event::Listed(Listing::Addresses)]
        );
        kernel.up("lo").await;
        addresses(&mut source, &["127.0.0.1@lo", "::1@lo"]).await;
        kernel.add("lo", "10.0.0.1", 24).await;
        addresses(&mut source, &["10.0.0.1@lo", "127.0.0.1@lo", "::1@lo"]).await;
        kernel.add("lo", "fd00::1", 64).await;
        addresses(&mut source, &["10.0.0.1@lo", "127.0.0.1@lo", "::1@lo", "fd00::1@lo"]).await;
        kernel.remove("lo", "10.0.0.1", 24).await;
        addresses(&mut source, &["127.0.0.1@lo", "::1@lo", "fd00::1@lo"]).await;
        source.stop().await;
    });
}

#[test]
fn existing_addresses_are_sent_first() {
    in_namespace(|| async {
        let kernel = TestKernel::open();
        kernel.add("lo", "10.0.0.1", 32).await;
        let (mut source, _links) = start();
        let batch = source.batch().await;
        let expected =
            NodeAddress { address: ip("10.0.0.1"), interface: "lo".into(), dummy: false };
        assert_eq!(batch[0], Event::Addresses(vec![expected]));
        source.stop().await;
    });
}

#[test]
fn links_are_published_with_name_index_and_mac() {
    in_namespace(|| async {
        let kernel = TestKernel::open();
        let (mut source, mut links) = start();
        source.batch().await;
        kernel.add_veth("pod1", "peer1").await;
        let shown = named(&mut links, &["lo", "peer1", "pod1"]).await;
        assert_eq!(shown[2].mac.len(), "0a:58:0a:01:02:03".len(), "{shown:?}");
        assert_eq!(shown[2].index, kernel.index("pod1").await);
        kernel.set(LinkUnspec::new_with_index(shown[2].index).name("pod2").build()).await;
        named(&mut links, &["lo", "peer1", "pod2"]).await;
        kernel.remove_link("pod2").await;
        named(&mut links, &["lo"]).await;
        source.stop().await;
    });
}

#[test]
fn an_address_goes_with_its_link() {
    in_namespace(|| async {
        let kernel = TestKernel::open();
        kernel.add_veth("pod1", "peer1").await;
        kernel.add("pod1", "10.0.0.1", 24).await;
        let (mut source, _links) = start();
        addresses(&mut source, &["10.0.0.1@pod1"]).await;
        kernel.remove_link("pod1").await;
        addresses(&mut source, &[]).await;
        source.stop().await;
    });
}

/// An IPv6 address is sent only when its duplicate detection is over.
#[test]
fn a_tentative_address_is_sent_when_the_kernel_answers_at_it() {
    in_namespace(|| async {
        let kernel = TestKernel::open();
        kernel.add_veth("pod1", "peer1").await;
        kernel.up("pod1").await;
        kernel.up("peer1").await;
        let (mut source, _links) = start();
        source.batch().await;
        kernel.add_unsure("pod1", "fd00::1", 64).await;
        let added = Instant::now();
        while !sent(&mut source).await.iter().any(|found| found.address == ip("fd00::1")) {}
        let waited = added.elapsed();
        assert!(
            waited > Duration::from_millis(500),
            "duplicate detection takes a second, not {waited:?}"
        );
        source.stop().await;
    });
}

/// So many changes, while the source does not read, that the kernel drops notifications.
#[test]
fn lost_notifications_lead_to_a_new_list() {
    const MANY: u32 = 20_000;
    in_namespace(|| async {
        let kernel = TestKernel::open();
        let (mut source, _links) = start();
        source.batch().await;
        // A thread starts in its parent's namespace. During the join nothing else runs here, so the
        // source reads nothing.
        let adding = thread::spawn(|| {
            in_runtime(async {
                let kernel = TestKernel::open();
                let lo = kernel.index("lo").await;
                for number in 0..MANY {
                    let address = Ipv4Addr::from(0x0a00_0000 + number);
                    let request = kernel.handle.address().add(lo, address.into(), 32);
                    request.execute().await.unwrap();
                }
            });
        });
        adding.join().unwrap();
        while sent(&mut source).await.len() < MANY as usize {}
        kernel.remove("lo", "10.0.0.0", 32).await;
        assert_eq!(sent(&mut source).await.len(), MANY as usize - 1);
        source.stop().await;
    });
}
