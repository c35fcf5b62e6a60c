//! Pods whose ADD goes past the plugin while the agent runs.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_state::RunDir;
use denizen_tests::agent::Agent;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::is_local;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::test_length;
use serde_json::{Value, json};

use super::{AdoptionContext, TIMEOUT, hidden_namespace, old_runtime};

/// As on a node where denizen is being installed: the agent runs, and ADDs still go by the list of
/// plugins without it.
#[test]
fn pods_attached_past_the_plugin_while_the_agent_runs_are_found() -> Result<()> {
    let context = AdoptionContext::new("adopt-late")?;
    // The runtime has not made its cache's folder yet.
    let agent = context.cluster.start_agent()?;
    let pods = [
        context.earlier("bridged", Wiring::Bridged, |_| ())?.0,
        context.earlier("routed", Wiring::Routed, old_runtime)?.0,
        context.earlier("hidden", Wiring::Routed, hidden_namespace)?.0,
    ];
    for pod in &pods {
        context.wait("found", &agent, || Ok(is_local(pod)))?;
        let record = context.record(pod)?.context("no record")?;
        assert!(record.adopted, "{record:?}");
    }
    // In a folder that is there by now, some time later.
    let later = context.earlier("later", Wiring::Bridged, |_| ())?.0;
    context.wait("found", &agent, || Ok(is_local(&later)))?;
    let status = agent.status()?;
    assert_eq!(status["pods"], 4);
    assert_eq!((&status["errors"], &status["warnings"]), (&json!([]), &json!([])));
    Ok(())
}

/// DEL goes through the chain backwards: denizen's record goes first, then the link, and what the
/// runtime remembers last.
#[test]
fn a_pod_that_is_being_deleted_does_not_come_back() -> Result<()> {
    let context = AdoptionContext::new("adopt-del")?;
    let node = &context.cluster.world.node;
    let agent = context.cluster.start_agent()?;
    let netns = Netns::new("adopt-del-leaving")?;
    let addresses = [ip("10.99.0.7"), ip("fd00:99::7")];
    let mut leaving = Pod::wire(node, netns, "leaving", Wiring::Routed, &addresses)?;
    leaving.record(node, context.cluster.run_dir(), &Value::Null)?;
    context.wait("known", &agent, || Ok(agent.status()?["pods"] == 1))?;
    let (name, cached) = leaving.cached(leaving.netns.path().to_str());
    context.remember(&name, &cached.to_string())?;
    leaving.forget(node)?;
    // Long enough for every look that would find it, and for one at a pod that did come past the
    // plugin.
    let late = context.earlier("late", Wiring::Routed, |_| ())?.0;
    context.wait("found", &agent, || Ok(is_local(&late)))?;
    thread::sleep(Duration::from_secs(3));
    assert_eq!(context.record(&leaving)?, None, "{}", agent.log());
    assert_eq!(agent.status()?["pods"], 1);
    Ok(())
}

/// A pipe is never waited for: not at the start, and not later.
#[test]
fn a_cached_result_that_is_no_regular_file_is_named_in_status() -> Result<()> {
    let context = AdoptionContext::new("adopt-pipe")?;
    let (pod, result) = context.earlier("pod", Wiring::Routed, |_| ())?;
    let pipe = result.with_file_name("pods-pipe-eth0");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    let agent = context.cluster.start_agent()?;
    assert!(is_local(&pod), "{}", agent.log());
    let named = format!("{} is left out: it is a named pipe", pipe.display());
    let warnings = || -> Result<String> { Ok(agent.status()?["warnings"].to_string()) };
    context.wait("named", &agent, || Ok(warnings()?.contains(&named)))?;
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// Whether status names a cached result that cannot be used, whose file is called like that.
fn left_out(agent: &Agent, name: &str) -> Result<bool> {
    Ok(agent.status()?["warnings"].to_string().contains(&format!("{name} is left out")))
}

/// The runtime writes a result in place: whoever reads it meanwhile sees a part.
#[test]
fn a_result_that_is_just_being_written_is_read_again() -> Result<()> {
    let context = AdoptionContext::new("adopt-part")?;
    let agent = context.cluster.start_agent()?;
    let pod = context.cluster.add_pod_without_denizen("pod", Wiring::Routed)?;
    let (name, cached) = pod.cached(pod.netns.path().to_str());
    let path = context.remember(&name, "")?;
    let mut file = fs::File::create(&path)?;
    for part in cached.to_string().as_bytes().chunks(40) {
        assert!(!left_out(&agent, &name)?, "{}", agent.log());
        file.write_all(part)?;
        thread::sleep(Duration::from_millis(100));
    }
    drop(file);
    context.wait("found", &agent, || Ok(is_local(&pod)))?;
    assert!(!left_out(&agent, &name)?);
    assert!(!agent.log().contains("cached cni result left out"), "{}", agent.log());
    Ok(())
}

/// Also where the agent misses nothing any more.
#[test]
fn a_result_that_cannot_be_used_is_named_until_it_is_gone_or_right() -> Result<()> {
    let context = AdoptionContext::new("adopt-bad")?;
    let (pod, good) = context.earlier("pod", Wiring::Routed, |_| ())?;
    let [gone, right] = ["pods-gone-eth0", "pods-right-eth0"];
    let [to_remove, to_correct] = [context.remember(gone, "{")?, context.remember(right, "{")?];
    let agent = context.cluster.start_agent()?;
    assert!(is_local(&pod), "{}", agent.log());
    for name in [gone, right] {
        context.wait("named", &agent, || left_out(&agent, name))?;
    }
    let changed = Instant::now();
    fs::remove_file(to_remove)?;
    fs::copy(good, to_correct)?;
    for name in [gone, right] {
        context.wait("not named any more", &agent, || Ok(!left_out(&agent, name)?))?;
    }
    let took = changed.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    Ok(())
}

#[test]
fn interfaces_without_a_record_are_reported_until_they_have_one() -> Result<()> {
    let context = AdoptionContext::new("adopt-report")?;
    let node = &context.cluster.world.node;
    let agent = context
        .cluster
        .start_agent_with(vec!["--not-pods".to_owned(), "eth*,docker0,v-lab*".to_owned()])?;
    let unrecorded =
        || -> Result<Option<u64>> { Ok(agent.status()?["unrecordedInterfaces"].as_u64()) };
    let unknown = context.cluster.add_pod_without_denizen("unknown", Wiring::Routed)?;
    // A container on a bridge that is not for pods, one by its own name, and a veth with both ends
    // on the node.
    let other = Netns::new("adopt-report-other")?;
    let elsewhere = other.path();
    let elsewhere = elsewhere.file_name().and_then(|name| name.to_str()).context("a name")?;
    node.ip(&format!(
        "link add docker0 type bridge\n\
         link add v-docker type veth peer name eth0 netns {elsewhere}\n\
         link set v-docker master docker0\n\
         link add v-lab1 type veth peer name eth1 netns {elsewhere}\n\
         link add v-here type veth peer name v-there"
    ))?;
    context.wait("reported", &agent, || Ok(unrecorded()? == Some(1)))?;
    let status = agent.status()?;
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains(unknown.host_interface()), "{status}");
    assert!(warnings.contains("--not-pods"), "what to do about it: {status}");
    assert_eq!(status["errors"], json!([]));
    let metrics = fetch(node, &url(ip("127.0.0.1"), 10249, "/metrics"), &[])?.body;
    assert!(metrics.contains("\ndenizen_unrecorded_interfaces 1\n"), "{metrics}");
    let (name, cached) = unknown.cached(unknown.netns.path().to_str());
    context.remember(&name, &cached.to_string())?;
    context.wait("found", &agent, || Ok(is_local(&unknown)))?;
    context.wait("no longer reported", &agent, || {
        let status = agent.status()?;
        Ok(status["unrecordedInterfaces"] == 0 && status["warnings"] == json!([]))
    })
}

/// A node with very many pods, all of which came past the plugin: 2,000 in full length.
#[test]
fn very_many_pods_that_came_past_the_plugin_are_found() -> Result<()> {
    const EACH: usize = 50;
    let number_of_namespaces = test_length::times(40, 4);
    let wanted = number_of_namespaces * EACH;
    let context = AdoptionContext::new("adopt-many")?;
    let node = &context.cluster.world.node;
    let agent = context.cluster.start_agent()?;
    let mut slowest = Duration::ZERO;
    let mut ask = || -> Result<u64> {
        let asked = Instant::now();
        let pods = agent.status()?["pods"].as_u64().context("no number")?;
        slowest = slowest.max(asked.elapsed());
        Ok(pods)
    };
    let before = cpu(&agent)?;
    let begun = Instant::now();
    let mut namespaces = Vec::new();
    for number in 0..number_of_namespaces {
        let netns = Netns::new(&format!("adopt-many-{number}"))?;
        let name = netns.name().to_owned();
        let (mut links, mut inside) = (String::new(), String::new());
        for each in 0..EACH {
            let (veth, address) = (format!("v{number}-{each}"), format!("10.77.{number}.{each}"));
            writeln!(links, "link add {veth} type veth peer name eth{each} netns {name}")?;
            writeln!(links, "link set {veth} up")?;
            writeln!(links, "route add {address}/32 dev {veth}")?;
            writeln!(inside, "link set eth{each} up\naddr add {address}/32 dev eth{each}")?;
        }
        node.ip(&links)?;
        netns.ip(&inside)?;
        for each in 0..EACH {
            let (veth, address) =
                (format!("v{number}-{each}"), format!("10.77.{number}.{each}/32"));
            let (container, interface) = (format!("c{number}"), format!("eth{each}"));
            let path = netns.path();
            let cached = json!({
                "kind": "cniCacheV1", "containerId": container, "ifName": interface,
                "networkName": "routed", "netns": path,
                "result": {
                    "cniVersion": "1.0.0",
                    "interfaces": [{ "name": veth }, { "name": interface, "sandbox": path }],
                    "ips": [{ "address": address, "interface": 1 }],
                },
            });
            context.remember(&format!("routed-{container}-{interface}"), &cached.to_string())?;
        }
        namespaces.push(netns);
        ask()?;
    }
    let attached = begun.elapsed();
    observed("all are found", 2 * TIMEOUT, &mut ask, |pods| *pods >= wanted as u64)?;
    let (found, cpu) = (begun.elapsed(), cpu(&agent)? - before);
    eprintln!(
        "attached in {attached:.2?}, all found after {found:.2?}, agent's CPU {cpu:.2} s, slowest status {slowest:.2?}"
    );
    let state = RunDir::open(context.cluster.run_dir())?.read()?.context("a file")?;
    assert_eq!(state.attachments.len(), wanted);
    assert!(state.attachments.values().all(|record| record.adopted));
    // It goes on: a pod that comes now is known at once.
    let pod = context.cluster.add_pod("one-more", Wiring::Routed)?;
    context.wait("known", &agent, || Ok(is_local(&pod)))?;
    // The loop never stood still for long, on a machine that makes all these links meanwhile.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    Ok(())
}

/// Seconds of processor time that the agent has used.
fn cpu(agent: &Agent) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid()))?;
    let fields = stat.rsplit_once(')').context("no name")?.1;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    // USER_HZ is 100 on every Linux that Debian runs on.
    Ok(ticks.iter().sum::<f64>() / 100.0)
}
