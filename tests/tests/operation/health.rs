//! `/healthz` and `/livez`, asked by curl.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_state::RunDir;
use denizen_state::run_dir::SOCKET;
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::agent::{Agent, Objects, START_TIMEOUT, Settings};
use denizen_tests::conf;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::{Cluster, NODE};
use denizen_tests::node::fixture::{Fixture, Host, PORT as PORT_OF_PODS, is_local, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::flood::Flood;
use denizen_tests::packets::http::{Reply, fetch, url};
use serde_json::{Value, json};

const PORT: u16 = 10256;

/// Where the agent answers the kubelet.
const PROBES: u16 = 20257;

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

fn ask(cluster: &Cluster, path: &str) -> Result<Reply> {
    fetch(&cluster.world.node, &url(ip("127.0.0.1"), PORT, path), &[])
}

/// Asks until the answer has this status.
fn until(cluster: &Cluster, path: &str, status: u16) -> Result<Value> {
    let has_status =
        |reply: &Result<Reply>| reply.as_ref().is_ok_and(|reply| reply.status == status);
    observed(&format!("{status} at {path}"), TIMEOUT, || Ok(ask(cluster, path)), has_status)??
        .json()
}

fn this_node() -> Value {
    manifest::node(NODE, &["192.168.0.2", "2001:db8::1"].map(ip), "")
}

#[test]
fn both_families_are_told_as_by_kube_proxy() -> Result<()> {
    let cluster = Cluster::new("hz-as", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    until(&cluster, "/healthz", 200)?;
    let places = [
        (&cluster.world.client, "192.168.0.2"),
        (&cluster.world.client, "2001:db8::1"),
        (&cluster.world.node, "127.0.0.1"),
        (&cluster.world.node, "::1"),
    ];
    for (from, address) in places.map(|(from, address)| (from, ip(address))) {
        for path in ["/healthz", "/livez"] {
            let reply = fetch(from, &url(address, PORT, path), &[])?;
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.header("content-type"), Some("application/json"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
            let body = reply.json()?;
            assert_eq!(body["healthy"], true, "{body}");
            assert_eq!(body["lastUpdated"], body["currentTime"], "{body}");
            assert_eq!(body["status"]["IPv4"]["healthy"], true, "{body}");
            assert_eq!(body["status"]["IPv6"]["healthy"], true, "{body}");
            let eligible = if path == "/healthz" { json!(true) } else { Value::Null };
            assert_eq!(body["nodeEligible"], eligible, "{body}");
        }
        assert_eq!(fetch(from, &url(address, PORT, "/"), &[])?.status, 404);
    }
    Ok(())
}

/// Not ready is no reason to be started anew.
#[test]
fn an_agent_that_still_waits_is_live_and_not_ready() -> Result<()> {
    let cluster = Cluster::new("hz-wait", &Value::Null)?;
    let folder = cluster.world.folder().join("to-come");
    let settings = Settings { objects: Objects::Manifests(folder.clone()), ..cluster.settings() };
    let mut agent = Agent::spawn(&cluster.world.node, settings)?;
    let body = until(&cluster, "/healthz", 503)?;
    assert_eq!((&body["healthy"], &body["nodeEligible"]), (&json!(false), &json!(true)), "{body}");
    assert_eq!(until(&cluster, "/livez", 200)?["healthy"], true);
    std::fs::rename(cluster.manifests.folder(), &folder)?;
    agent.wait_programmed(START_TIMEOUT + TIMEOUT)?;
    until(&cluster, "/healthz", 200)?;
    Ok(())
}

#[test]
fn a_node_that_leaves_gets_no_traffic_and_its_agent_lives() -> Result<()> {
    let cluster = Cluster::new("hz-node", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let mut tainted = this_node();
    tainted["spec"]["taints"] =
        json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    let mut deleted = this_node();
    deleted["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z".into();
    let another = manifest::node("another", &[ip("192.168.0.9")], "");
    for object in [tainted, deleted, another] {
        until(&cluster, "/healthz", 200)?;
        cluster.manifests.put("node", &[object])?;
        let body = until(&cluster, "/healthz", 503)?;
        assert_eq!(
            (&body["healthy"], &body["nodeEligible"]),
            (&json!(true), &json!(false)),
            "{body}"
        );
        until(&cluster, "/livez", 200)?;
        cluster.manifests.put("node", &[this_node()])?;
    }
    until(&cluster, "/healthz", 200)?;
    Ok(())
}

/// On a plain host what is removed can be made again: the directory, the state file, the socket.
#[test]
fn a_run_directory_that_is_removed_comes_back_with_all_that_was_in_it() -> Result<()> {
    let wait = json!({ "timeout": "30s", "onTimeout": "fail" });
    let cluster = Cluster::new("hz-run", &wait)?;
    let _web = cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT_OF_PODS))?;
    let agent = cluster.start_agent()?;
    let mut pods = vec![cluster.add_pod("first", Wiring::Routed)?];
    let (run_dir, aside) = (cluster.run_dir(), cluster.world.folder().join("aside"));
    let removals: [(&str, &dyn Fn() -> std::io::Result<()>); 2] = [
        ("socket", &|| fs::remove_file(run_dir.join(SOCKET))),
        ("directory", &|| fs::rename(run_dir, &aside)),
    ];
    for (what, remove) in removals {
        remove()?;
        let is_back = || -> Result<()> {
            let status = agent.status()?;
            ensure!(status["errors"] == json!([]), "{status}");
            let state = RunDir::open(run_dir)?.read()?.context("no state file")?;
            ensure!(state.attachments.len() == pods.len(), "{state:?}");
            Ok(())
        };
        observed(&format!("back: {what}"), TIMEOUT, || Ok(is_back()), Result::is_ok)??;
        assert_eq!(ask(&cluster, "/livez")?.status, 200);
        // Its ADD waits for the agent, which it finds by the socket.
        pods.push(cluster.add_pod(what, Wiring::Bridged)?);
        assert_eq!(agent.status()?["pods"], pods.len());
    }
    assert!(pods.iter().all(is_local));
    Ok(())
}

/// Shows a process `$1` at `$2`, as a runtime shows a container a directory of the host.
const MOUNTED: &str = r#"
set -e
mount -t tmpfs tmpfs "$2"
mount --bind "$1" "$2"
shift 2
exec "$@"
"#;

/// Takes its run directory from the agent in this process.
type Loss<'a> = &'a dyn Fn(u32) -> Result<()>;

/// A container's mount goes on to lead to what was removed, or to nowhere: nothing that it makes
/// there is seen outside.
#[test]
fn an_agent_that_only_a_restart_gives_its_run_directory_back_is_not_live() -> Result<()> {
    let cluster = Cluster::new("hz-mount", &Value::Null)?;
    let on_host = cluster.world.folder().join("on-host");
    let at = cluster.run_dir().to_owned();
    let unmount = |pid: u32| -> Result<()> {
        let mut leave = Command::new("nsenter");
        leave.arg(format!("--mount=/proc/{pid}/ns/mnt")).args(["umount", "--lazy"]).arg(&at);
        checked(&mut leave).map(drop)
    };
    let losses: [(&str, Loss<'_>); 2] =
        [("removed", &|_| Ok(fs::remove_dir_all(&on_host)?)), ("unmounted", &|pid| unmount(pid))];
    for (how, lose) in losses {
        fs::create_dir_all(&on_host)?;
        let mut container = Command::new("unshare");
        container.args(["--mount", "sh", "-c", MOUNTED, "sh"]).arg(&on_host).arg(&at);
        let agent = WrappedAgent::start(&cluster, container)?;
        until(&cluster, "/livez", 200)?;
        until(&cluster, "/healthz", 200)?;
        lose(agent.pid())?;
        let body = until(&cluster, "/livez", 503)?;
        let reason = body["reason"].to_string();
        assert!(reason.contains("run directory"), "{how}: {reason}");
        // What is programmed is served: load balancers go on.
        assert_eq!(ask(&cluster, "/healthz")?.status, 200, "{how}");
    }
    Ok(())
}

/// Who asks for health, and where.
struct Prober<'a> {
    who: &'static str,
    from: &'a Netns,
    to: SocketAddr,
    path: &'static str,
    /// How long an answer may ever take.
    timeout: Duration,
    /// What the median of all answers is within.
    promise: Duration,
}

impl Prober<'_> {
    /// Asks once, as whoever probes does; how long the answer took.
    fn ask(&self) -> Result<Duration> {
        let Self { to, path, timeout, .. } = self;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
        let ask = || -> Result<(Duration, String)> {
            let started = Instant::now();
            let mut stream = TcpStream::connect_timeout(to, *timeout)?;
            stream.set_read_timeout(Some(*timeout))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok((started.elapsed(), answer))
        };
        let (took, answer) = self.from.run(ask)?.context(self.who)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{}: {answer}", self.who);
        Ok(took)
    }

    /// Asks twenty times.
    fn ask_often(&self) -> Result<()> {
        let mut took = Vec::new();
        for _ in 0..20 {
            took.push(self.ask().with_context(|| format!("after {took:?}"))?);
            thread::sleep(Duration::from_millis(20));
        }
        took.sort_unstable();
        println!("{}: median {:?}, longest {:?}", self.who, took[10], took[19]);
        ensure!(took[10] < self.promise, "{}: {took:?}", self.who);
        Ok(())
    }
}

/// The port of a service's health check.
const CHECK: u16 = 32100;

/// The kubelet where the DaemonSet has it ask, and at the node's address; load balancers at that
/// and at a service's port.
fn probers(fixture: &Fixture) -> Result<[Prober<'_>; 4]> {
    let world = &fixture.cluster.world;
    let prober = |who, from, address: &str, port, path| Prober {
        who,
        from,
        to: SocketAddr::new(ip(address), port),
        path,
        // They share a queue and a thread with whoever attacks, which takes its share of the
        // processors to see to: what is promised is that no packet of theirs is lost for want of
        // room, which would cost them a second.
        timeout: Duration::from_secs(5),
        promise: Duration::from_secs(1),
    };
    let kubelet = prober("kubelet", &world.node, "127.0.0.1", PROBES, "/denizen/live");
    let node = world.addresses().node[0].to_string();
    Ok([
        Prober { timeout: Duration::from_secs(1), promise: Duration::from_millis(100), ..kubelet },
        prober("kubelet, at the node's address", &world.node, &node, PORT, "/livez"),
        prober("load balancer", &world.client, &node, PORT, "/healthz"),
        prober("load balancer, of a service", &world.client, &node, CHECK, "/"),
    ])
}

/// 10,000 connections of pods and of another host, which ask nothing, half of something, or do not
/// read, and come again as soon as they are closed. The kubelet has its answers within 100 ms.
#[test]
fn ten_thousand_hostile_connections_keep_no_probe_waiting() -> Result<()> {
    let fixture = Fixture::new("hz-flood")?;
    let http = [Port::tcp("http", 80, PORT_OF_PODS).at_node(30080)];
    let mut web = fixture.service("web", 10, &http, &[Host::Routed])?;
    web[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    web[0]["spec"]["type"] = "LoadBalancer".into();
    web[0]["spec"]["healthCheckNodePort"] = CHECK.into();
    fixture.cluster.manifests.put("web", &web)?;
    let agent = fixture.cluster.start_agent()?;
    let probers = probers(&fixture)?;
    eventually("served before the attack", TIMEOUT, || {
        Ok(probers.iter().all(|prober| prober.ask().is_ok()))
    })?;
    let [v4, v6] = ["192.168.0.2", "2001:db8::1"].map(ip);
    let clients = [
        (&fixture.bridged.netns, SocketAddr::new(v4, PORT)),
        (&fixture.routed.netns, SocketAddr::new(v4, PORT)),
        (&fixture.bridged.netns, SocketAddr::new(v6, PORT)),
        (&fixture.routed.netns, SocketAddr::new(v4, CHECK)),
        (&fixture.cluster.world.remote, SocketAddr::new(v4, CHECK)),
    ];
    let flood = Flood::start(&clients, 2_000)?;
    for prober in &probers {
        prober.ask_often()?;
    }
    println!("{} hostile connections", flood.made());
    flood.end()?;
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// Asks as the shipped DaemonSet has the kubelet ask.
fn probed(node: &Netns, probe: &str) -> Result<Reply> {
    let containers = conf::containers(conf::DAEMON_SET)?;
    let agent =
        containers.iter().find(|container| container["name"] == "agent").context("no agent")?;
    let get = &agent[probe]["httpGet"];
    let host = get["host"].as_str().context("it asks the node's address")?;
    let port = u16::try_from(get["port"].as_u64().context("a port")?)?;
    fetch(node, &url(ip(host), port, get["path"].as_str().context("a path")?), &[])
}

/// Answers every request at kube-proxy's health port as a well kube-proxy does, until the test
/// ends.
fn kube_proxys_health(node: &Netns) -> Result<()> {
    let listener = node.run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            let _ = client.write_all(answer.as_bytes());
        }
    });
    Ok(())
}

/// During a migration kube-proxy has its ports still. A rollout must not succeed without us.
#[test]
fn the_kubelets_probes_are_answered_by_the_agent_alone() -> Result<()> {
    let cluster = Cluster::new("hz-beside", &Value::Null)?;
    let node = &cluster.world.node;
    kube_proxys_health(node)?;
    assert_eq!(ask(&cluster, "/healthz")?.status, 200, "kube-proxy answers");
    for probe in ["readinessProbe", "livenessProbe"] {
        let answer = probed(node, probe);
        ensure!(answer.is_err(), "no agent runs, and {probe} is answered: {answer:?}");
    }
    let nowhere = Objects::Manifests(cluster.world.folder().join("nowhere"));
    let agent = Agent::spawn(node, Settings { objects: nowhere, ..cluster.settings() })?;
    let is_live = || Ok(probed(node, "livenessProbe").is_ok_and(|reply| reply.status == 200));
    eventually("it runs", TIMEOUT, is_live)?;
    assert_eq!(probed(node, "readinessProbe")?.status, 503, "nothing is programmed");
    agent.terminate()?;
    let _agent = cluster.start_agent()?;
    for probe in ["readinessProbe", "livenessProbe"] {
        let reply = probed(node, probe)?;
        assert_eq!(reply.status, 200, "{probe}: {reply:?}");
    }
    Ok(())
}

#[test]
fn health_is_served_where_it_is_asked_for() -> Result<()> {
    let cluster = Cluster::new("hz-flag", &Value::Null)?;
    let cases: [(&str, &[&str]); 3] = [
        ("[2001:db8::1]:8000", &["2001:db8::1"]),
        ("192.168.1.2:8000", &["192.168.1.2"]),
        ("", &[]),
    ];
    for (flag, served) in cases {
        let settings = Settings {
            flags: vec![format!("--healthz-bind-address={flag}")],
            ..cluster.settings()
        };
        let agent = Agent::start(&cluster.world.node, settings)?;
        let live = |address: &str, port| {
            fetch(&cluster.world.client, &url(ip(address), port, "/livez"), &[])
        };
        for address in served {
            observed(flag, TIMEOUT, || Ok(live(address, 8000)), Result::is_ok)??;
        }
        for address in ["192.168.0.2", "192.168.1.2", "2001:db8::1"] {
            let answers = [8000, PORT].map(|port| live(address, port));
            assert_eq!(
                answers[0].is_ok(),
                served.contains(&address),
                "{flag}: {address}: {answers:?}"
            );
            assert!(answers[1].is_err(), "{flag}: {address}: {answers:?}");
        }
        agent.terminate()?;
    }
    Ok(())
}
