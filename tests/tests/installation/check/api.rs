//! The API server and what it permits.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use denizen_tests::agent::check::{CheckReport, CheckedNode};
use denizen_tests::binary;
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::manifest::node;
use denizen_tests::node::world::ip;
use denizen_tests::peers::api::{Api, ApiServer, ServerBehaviour};

/// What is wrong with a server, and what is found: name, verdict, a part of the reason.
type Fault = (&'static str, fn(&mut ServerBehaviour), [&'static str; 3]);

const FAULTS: [Fault; 6] = [
    (
        "an unknown token",
        |behaviour| behaviour.tokens = vec!["x".to_owned()],
        ["credentials", "failure", "401"],
    ),
    (
        "a proxy's page in place of the nodes",
        |behaviour| behaviour.garbled = vec!["nodes"],
        ["node", "warning", "answer cannot be read"],
    ),
    (
        "a proxy's page in place of what a role permits",
        |behaviour| behaviour.garbled = vec!["selfsubjectaccessreviews"],
        ["rights", "warning", "answer cannot be read"],
    ),
    (
        "an old server",
        |behaviour| behaviour.release = "v1.20.15",
        ["server", "failure", "v1.20.15"],
    ),
    ("a server ahead", |behaviour| behaviour.clock_ahead = 600, ["clock", "warning", "differ by"]),
    (
        "a server behind",
        |behaviour| behaviour.clock_ahead = -600,
        ["clock", "warning", "differ by"],
    ),
];

/// What the role of an installation may lack.
const RIGHTS: [Fault; 4] = [
    (
        "a role without policies",
        |behaviour| behaviour.forbidden = vec!["networkpolicies"],
        ["rights", "failure", "list networkpolicies.networking.k8s.io, watch"],
    ),
    (
        "a role without single pods",
        |behaviour| behaviour.forbidden = vec!["pods"],
        ["rights", "failure", "get pods"],
    ),
    (
        "a role without events",
        |behaviour| behaviour.forbidden = vec!["events"],
        ["rights", "warning", "create events.events.k8s.io"],
    ),
    (
        "a server that does not say what a role permits",
        |behaviour| behaviour.unserved = vec!["selfsubjectaccessreviews"],
        ["rights", "warning", "could not find the requested resource"],
    ),
];

/// Before an installation, on a node where nothing else is wrong.
fn check(on: &CheckedNode, kubeconfig: &str) -> Result<CheckReport> {
    let flags = on.flags().into_iter().chain([format!("--kubeconfig={kubeconfig}")]);
    CheckReport::on(&on.netns, flags)
}

#[test]
fn each_fault_of_the_api_is_found_and_nothing_else() -> Result<()> {
    let on = CheckedNode::new("check-api")?;
    let address: SocketAddr = "127.0.0.1:6443".parse()?;
    let folder = on.path("api");
    fs::create_dir(&folder)?;
    let mut api = ApiServer::start(&on.netns, address, &folder)?;
    let kubeconfig = api.kubeconfig().display().to_string();
    check(&on, &kubeconfig)?.ensure_only("node", "warning", "no Node node-1")?;
    api.put(&node(NODE, &[ip("192.168.0.2")], ""))?;
    check(&on, &kubeconfig)?.ensure_well()?;
    for (what, misbehave, [name, verdict, words]) in FAULTS {
        api.behave(misbehave);
        check(&on, &kubeconfig)?.ensure_only(name, verdict, words).context(what)?;
        api.behave(|behaviour| *behaviour = ServerBehaviour::default());
    }
    check(&on, &kubeconfig)?.ensure_well()?;
    api.change_authority()?;
    api.stop();
    check(&on, &kubeconfig)?.ensure_only("server", "failure", "cannot be reached")?;
    api.go_on(&on.netns)?;
    check(&on, &kubeconfig)?.ensure_only("server", "failure", "certificate")?;
    check(&on, "/nowhere")?.ensure_only("credentials", "failure", "/nowhere")
}

/// A node that is not installed yet has a kubelet's kubeconfig, whose rights are not the agent's.
#[test]
fn rights_that_the_installation_brings_are_skipped_before_it() -> Result<()> {
    let on = CheckedNode::new("check-rights")?;
    let folder = on.path("api");
    fs::create_dir(&folder)?;
    let api = ApiServer::start(&on.netns, "127.0.0.1:6443".parse()?, &folder)?;
    let kubeconfig = api.kubeconfig().display().to_string();
    api.put(&node(NODE, &[ip("192.168.0.2")], ""))?;
    api.behave(|behaviour| behaviour.forbidden = vec!["services", "networkpolicies", "events"]);
    let before = check(&on, &kubeconfig)?;
    before.ensure_well()?;
    before.ensure("rights", "skipped", &kubeconfig)?;
    before.ensure("rights", "skipped", "list services")?;
    before.ensure("credentials", "ok", "accepts them")?;
    // A kubelet of some clusters may not list Nodes.
    api.behave(|behaviour| behaviour.forbidden.push("nodes"));
    let before = check(&on, &kubeconfig)?;
    before.ensure_well()?;
    before.ensure("node", "skipped", "nodes is forbidden")?;
    api.behave(|behaviour| *behaviour = ServerBehaviour::default());
    check(&on, &kubeconfig)?.ensure("rights", "ok", "permits all")?;
    // After it, nothing is skipped.
    for (what, misbehave, [name, verdict, words]) in RIGHTS {
        api.behave(misbehave);
        let flags = on.flags().into_iter().filter(|flag| flag != "--pre");
        let found =
            CheckReport::on(&on.netns, flags.chain([format!("--kubeconfig={kubeconfig}")]))?;
        found.ensure(name, verdict, words).context(what)?;
        api.behave(|behaviour| *behaviour = ServerBehaviour::default());
    }
    Ok(())
}

#[test]
fn an_api_address_that_only_the_agent_would_serve_is_found() -> Result<()> {
    let on = CheckedNode::new("check-in-pod")?;
    let check = |environment: &[(&str, &str)]| {
        let mut program = Command::new(binary::ours("denizen-agent")?);
        program.env_remove("DENIZEN_API_SERVER").envs(environment.iter().copied());
        CheckReport::behind(&on.netns, program, on.flags())
    };
    let in_pod = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    check(&[in_pod])?.ensure_only("credentials", "failure", "is a cluster IP")?;
    let nothing = check(&[])?;
    nothing.ensure_well()?;
    nothing.ensure("credentials", "skipped", "--kubeconfig")
}
