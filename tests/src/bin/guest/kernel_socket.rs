//! A connection of the kernel's own from a redirected pod: NFS, whose sockets belong to no user.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use denizen_tests::node::cni::{Call, Chain, Refusal};
use denizen_tests::node::netns::{Netns, folder};
use nix::mount::{MsFlags, mount};
use nix::sys::socket::{getsockopt, sockopt};
use serde_json::{Value, json};

/// The port of mountd, which an NFS mount contacts first.
const MOUNTD: u16 = 20048;

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// No rule mistakes the kernel's connection for the proxy's, whichever user mounts. A port that is
/// skipped is not redirected.
pub(crate) fn is_redirected_unless_its_port_is_skipped() -> Result<()> {
    let to = mounts_from("nfs-mesh", &json!({ "profile": "linkerd" }), 4140)?;
    ensure!(to.port() == MOUNTD, "redirected, with {to} as its destination");
    let skips = json!({ "profile": "linkerd", "skipOutboundPorts": [MOUNTD] });
    let to = mounts_from("nfs-skip", &skips, MOUNTD)?;
    ensure!(to.port() == MOUNTD, "{to}");
    Ok(())
}

/// Mounts from within a pod with this `redirect`; the server is the node. Returns the original
/// destination of the connection that the node, or the proxy in the pod, gets at `port`.
fn mounts_from(name: &str, redirect: &Value, port: u16) -> Result<SocketAddr> {
    let (node, pod) = (Netns::new(name)?, Netns::new(&format!("{name}-pod"))?);
    pod.ip("link set lo up")?;
    let folder = folder()?;
    let entry = json!({
        "redirect": redirect,
        "runtimeConfig": {
            "io.kubernetes.cri.pod-annotations": { "linkerd.io/proxy-version": "edge-26.8.1" },
        },
    });
    let server = Ipv4Addr::new(10, 85, 0, 1);
    let chain = Chain::routed(&[("10.85.0.0/24", server.into())], folder.path())
        .then_denizen(&folder.path().join("denizen"), &entry);
    let call = Call::of_pod(name, "web-0", &pod.path());
    chain.add(&node, &call).map_err(|refusal: Refusal| anyhow!("{refusal}"))?;
    let accepted = [&node, &pod].map(|netns| listen(netns, port));
    let [at_node, in_pod] = accepted;
    let (at_node, in_pod) = (at_node?, in_pod?);
    let expected = if port == MOUNTD { at_node } else { in_pod };
    pod.run(|| mount_nfs(server, folder.path()))?;
    expected.recv_timeout(TIMEOUT).context("nobody connected")
}

/// Takes one connection and answers nothing, so that the mount fails at once. (Linux 5.10 connects
/// again and again, as long as somebody listens.)
fn listen(netns: &Netns, port: u16) -> Result<Receiver<SocketAddr>> {
    let listener = netns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        if let Some(stream) = listener.incoming().flatten().next() {
            let to = match getsockopt(&stream, sockopt::OriginalDst) {
                Ok(to) => {
                    let ip = Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr));
                    Ok(SocketAddr::new(ip.into(), u16::from_be(to.sin_port)))
                }
                // The destination was not translated.
                Err(_) => stream.local_addr(),
            };
            if let Ok(to) = to {
                let _ = send.send(to);
            }
        }
    });
    Ok(receive)
}

/// Mounts with the options that `mount.nfs` would give the kernel.
fn mount_nfs(server: Ipv4Addr, at: &std::path::Path) {
    let options = format!(
        "vers=3,proto=tcp,port=2049,addr={server},mountproto=tcp,mountvers=3,mountport={MOUNTD},\
         mountaddr={server},nolock,soft,timeo=10,retrans=0"
    );
    let source = format!("{server}:/");
    // Nobody answers, so it fails.
    let _ = mount(Some(source.as_str()), at, Some("nfs"), MsFlags::empty(), Some(options.as_str()));
}
