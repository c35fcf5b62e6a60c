//! In a network namespace of their own, which takes root: without it they fail.

use std::net::IpAddr;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use rtnetlink::{LinkUnspec, LinkVeth, new_connection};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A source that runs, and what it told.
struct Running {
    events: mpsc::Receiver<Vec<Event>>,
    links: latest::Receiver<Arc<[Link]>>,
    task: JoinHandle<()>,
}

impl Running {
    fn start() -> Self {
        let (sender, events) = mpsc::channel(16);
        let (outlet, _) = Outlet::new(sender);
        let (shown, links) = latest::channel(Arc::from([]));
        Self {
            events,
            links,
            task: tokio::spawn(run(outlet, shown)),
        }
    }

    async fn batch(&mut self) -> Vec<Event> {
        timeout(LONG, self.events.recv())
            .await
            .expect("told in time")
            .expect("still running")
    }

    /// Waits until the addresses told are these.
    async fn addresses(&mut self, expected: &[&str]) {
        loop {
            let batch = self.batch().await;
            let [Event::Addresses(addresses), ..] = batch.as_slice() else {
                panic!("not addresses: {batch:?}")
            };
            if shown(addresses) == expected {
                return;
            }
        }
    }

    async fn stop(self) {
        drop(self.events);
        timeout(LONG, self.task).await.expect("stops in time").unwrap();
    }
}

fn shown(addresses: &[NodeAddress]) -> Vec<String> {
    addresses
        .iter()
        .map(|told| format!("{}@{}", told.address, told.interface))
        .collect()
}

/// Runs a test in a new network namespace, on a thread of its own since a thread cannot leave it again.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root, for a network namespace");
        block_on(test());
    });
    thread.join().unwrap();
}

fn block_on(future: impl Future<Output = ()>) {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future);
}

/// A way to change what the kernel has.
struct Kernel {
    handle: Handle,
}

impl Kernel {
    fn open() -> Self {
        let (connection, handle, _) = new_connection().unwrap();
        tokio::spawn(connection);
        Self { handle }
    }

    async fn index(&self, name: &str) -> u32 {
        let mut links = pin!(self.handle.link().get().match_name(name.to_owned()).execute());
        links.next().await.unwrap().unwrap().header.index
    }

    async fn up(&self, name: &str) {
        let message = LinkUnspec::new_with_index(self.index(name).await).up().build();
        self.handle.link().set(message).execute().await.unwrap();
    }

    /// A pair of links that are up.
    async fn veth(&self, name: &str, peer: &str) {
        self.handle
            .link()
            .add(LinkVeth::new(name, peer).build())
            .execute()
            .await
            .unwrap();
        for name in [name, peer] {
            self.up(name).await;
        }
    }

    async fn add(&self, name: &str, address: &str, length: u8) {
        let mut request = self
            .handle
            .address()
            .add(self.index(name).await, ip(address), length);
        request.message_mut().header.flags |= rtnetlink::packet_route::address::AddressHeaderFlags::Nodad;
        request.execute().await.unwrap();
    }

    async fn remove(&self, name: &str, address: &str, length: u8) {
        let mut message = AddressMessage::default();
        message.header.index = self.index(name).await;
        message.header.prefix_len = length;
        message.header.family = rtnetlink::packet_route::AddressFamily::Inet;
        message
            .attributes
            .push(rtnetlink::packet_route::address::AddressAttribute::Local(ip(
                address,
            )));
        self.handle.address().del(message).execute().await.unwrap();
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn addresses_are_told_as_they_come_and_go() {
    in_namespace(|| async {
        let kernel = Kernel::open();
        let mut source = Running::start();
        assert_eq!(
            source.batch().await,
            [Event::Addresses(vec![]), Event::Listed(Listing::Addresses)]
        );
        kernel.up("lo").await;
        source.addresses(&["127.0.0.1@lo", "::1@lo"]).await;
        kernel.add("lo", "10.0.0.1", 24).await;
        source.addresses(&["10.0.0.1@lo", "127.0.0.1@lo", "::1@lo"]).await;
        kernel.add("lo", "fd00::1", 64).await;
        source
            .addresses(&["10.0.0.1@lo", "127.0.0.1@lo", "::1@lo", "fd00::1@lo"])
            .await;
        kernel.remove("lo", "10.0.0.1", 24).await;
        source.addresses(&["127.0.0.1@lo", "::1@lo", "fd00::1@lo"]).await;
        source.stop().await;
    });
}

#[test]
fn what_is_there_at_the_start_is_told_first() {
    in_namespace(|| async {
        let kernel = Kernel::open();
        kernel.add("lo", "10.0.0.1", 32).await;
        let mut source = Running::start();
        let batch = source.batch().await;
        let expected = NodeAddress {
            address: ip("10.0.0.1"),
            interface: "lo".into(),
        };
        assert_eq!(batch[0], Event::Addresses(vec![expected]));
        source.stop().await;
    });
}

#[test]
fn links_are_shown_with_what_names_them() {
    in_namespace(|| async {
        let kernel = Kernel::open();
        let mut source = Running::start();
        source.batch().await;
        let names = |links: &Arc<[Link]>| links.iter().map(|link| link.name.to_string()).collect::<Vec<_>>();
        kernel
            .handle
            .link()
            .add(LinkVeth::new("pod1", "peer1").build())
            .execute()
            .await
            .unwrap();
        let both = |links: &Arc<[Link]>| names(links) == ["lo", "peer1", "pod1"];
        let links = timeout(LONG, source.links.wait_for(both))
            .await
            .expect("shown in time")
            .unwrap()
            .clone();
        assert_eq!(links[2].mac.len(), "0a:58:0a:01:02:03".len(), "{links:?}");
        assert_eq!(links[2].index, kernel.index("pod1").await);

        let renamed = LinkUnspec::new_with_index(links[2].index).name("pod2").build();
        kernel.handle.link().set(renamed).execute().await.unwrap();
        let other = |links: &Arc<[Link]>| names(links) == ["lo", "peer1", "pod2"];
        timeout(LONG, source.links.wait_for(other))
            .await
            .expect("shown in time")
            .unwrap();

        kernel.handle.link().del(links[2].index).execute().await.unwrap();
        let gone = |links: &Arc<[Link]>| names(links) == ["lo"];
        timeout(LONG, source.links.wait_for(gone))
            .await
            .expect("shown in time")
            .unwrap();
        source.stop().await;
    });
}

#[test]
fn an_address_goes_with_its_link() {
    in_namespace(|| async {
        let kernel = Kernel::open();
        kernel
            .handle
            .link()
            .add(LinkVeth::new("pod1", "peer1").build())
            .execute()
            .await
            .unwrap();
        kernel.add("pod1", "10.0.0.1", 24).await;
        let mut source = Running::start();
        source.addresses(&["10.0.0.1@pod1"]).await;
        kernel
            .handle
            .link()
            .del(kernel.index("pod1").await)
            .execute()
            .await
            .unwrap();
        source.addresses(&[]).await;
        source.stop().await;
    });
}

/// An IPv6 address is told when its duplicate detection is over, not before.
#[test]
fn a_tentative_address_is_told_when_the_kernel_answers_at_it() {
    in_namespace(|| async {
        let kernel = Kernel::open();
        kernel.veth("pod1", "peer1").await;
        let mut source = Running::start();
        source.batch().await;
        let index = kernel.index("pod1").await;
        kernel
            .handle
            .address()
            .add(index, ip("fd00::1"), 64)
            .execute()
            .await
            .unwrap();
        let added = Instant::now();
        loop {
            let batch = source.batch().await;
            let [Event::Addresses(addresses)] = batch.as_slice() else {
                panic!("not addresses: {batch:?}")
            };
            if addresses.iter().any(|told| told.address == ip("fd00::1")) {
                break;
            }
        }
        assert!(
            added.elapsed() > Duration::from_millis(500),
            "duplicate detection takes a second"
        );
        source.stop().await;
    });
}

/// So many changes, while the source does not read, that the kernel drops notifications.
#[test]
fn lost_notifications_are_made_up_for() {
    const MANY: u32 = 20_000;
    in_namespace(|| async {
        let kernel = Kernel::open();
        let mut source = Running::start();
        source.batch().await;
        // A thread is born into its parent's namespace. While it is waited for, nothing else runs here.
        let adding = thread::spawn(|| {
            block_on(async {
                let kernel = Kernel::open();
                let lo = kernel.index("lo").await;
                for number in 0..MANY {
                    let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
                    kernel
                        .handle
                        .address()
                        .add(lo, address.into(), 32)
                        .execute()
                        .await
                        .unwrap();
                }
            });
        });
        adding.join().unwrap();
        loop {
            let batch = source.batch().await;
            let [Event::Addresses(addresses)] = batch.as_slice() else {
                panic!("not addresses: {batch:?}")
            };
            if addresses.len() == MANY as usize {
                break;
            }
        }
        kernel.remove("lo", "10.0.0.0", 32).await;
        let batch = source.batch().await;
        let [Event::Addresses(addresses)] = batch.as_slice() else {
            panic!("not addresses: {batch:?}")
        };
        assert_eq!(addresses.len(), MANY as usize - 1);
        source.stop().await;
    });
}
