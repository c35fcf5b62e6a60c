//! How the agent finds the API: as a pod, by a kubeconfig file, on a node where nothing is
//! programmed yet.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use denizen_tests::agent::{Agent, Objects, START_TIMEOUT, Settings};
use denizen_tests::bench::Memory;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::peers::api::context::{ApiContext, until_no_error};
use denizen_tests::peers::api::{Api, ApiServer, Authority};

/// What Kubernetes tells a pod: the cluster IP of the API's own service.
const SERVICE_HOST: &str = "172.30.0.1";

/// A pod's service account, mounted as kubelet mounts it.
fn account(context: &ApiContext<ApiServer>) -> Result<PathBuf> {
    let folder = context.api.folder();
    std::fs::write(folder.join("namespace"), "kube-system")?;
    Ok(folder.to_owned())
}

fn as_a_pod(context: &ApiContext<ApiServer>, server: Option<String>) -> Result<Settings> {
    let mut environment = vec![
        ("KUBERNETES_SERVICE_HOST", SERVICE_HOST.to_owned()),
        ("KUBERNETES_SERVICE_PORT", "443".to_owned()),
    ];
    environment.extend(server.map(|server| ("DENIZEN_API_SERVER", server)));
    Ok(Settings {
        objects: Objects::Pod { account: account(context)?, environment },
        ..context.settings()
    })
}

/// The way to the service ranges is the fabric, where nobody knows them: there is no kube-proxy,
/// and no rule.
#[test]
fn a_cold_node_without_kube_proxy_starts_by_a_real_address() -> Result<()> {
    let context = ApiContext::own("kube-cold")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    context.until_unknown(10)?;
    let settings = as_a_pod(&context, Some(context.api.url()))?;
    let agent = Agent::start(&context.fixture.cluster.world.node, settings)?;
    context.until_answered(10, Host::Routed)?;
    until_no_error(&agent)
}

/// What the agent says when it ends by itself.
fn last_words(context: &ApiContext<ApiServer>, settings: Settings) -> Result<String> {
    let mut agent = Agent::spawn(&context.fixture.cluster.world.node, settings)?;
    agent.quiet();
    let error = agent.wait_programmed(START_TIMEOUT);
    let error = error.expect_err("it has nothing to start with").to_string();
    assert!(error.contains("ended with exit status: 1"), "{error}");
    Ok(error)
}

#[test]
fn it_refuses_to_depend_on_an_address_that_only_it_would_serve() -> Result<()> {
    let context = ApiContext::own("kube-refuse")?;
    for server in [None, Some(String::new())] {
        let words = last_words(&context, as_a_pod(&context, server)?)?;
        for part in [SERVICE_HOST, "cluster IP", "--master", "DENIZEN_API_SERVER"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
    // A token in clear would be everybody's.
    let clear = context.api.url().replace("https", "http");
    let words = last_words(&context, as_a_pod(&context, Some(clear.clone()))?)?;
    assert!(words.contains(&clear), "{words}");
    Ok(())
}

#[test]
fn credentials_that_cannot_be_used_are_named() -> Result<()> {
    let context = ApiContext::own("kube-creds")?;
    let kubeconfig = |name: &str, text: Option<&str>| -> Result<String> {
        let path = context.api.folder().join(name);
        if let Some(text) = text {
            std::fs::write(&path, text)?;
        }
        let objects = Objects::Kubeconfig(path);
        last_words(&context, Settings { objects, ..context.settings() })
    };
    let cases = [
        ("missing", None, "No such file"),
        ("no-yaml", Some("clusters: ["), "no-yaml"),
        ("no-context", Some("apiVersion: v1\nkind: Config\n"), "context"),
    ];
    for (name, text, part) in cases {
        let words = kubeconfig(name, text)?;
        assert!(words.contains(name) && words.contains(part), "{name}: {words}");
    }
    let mut settings = as_a_pod(&context, Some(context.api.url()))?;
    let empty = context.fixture.cluster.world.subfolder("empty")?;
    if let Objects::Pod { account, .. } = &mut settings.objects {
        *account = empty;
    }
    let words = last_words(&context, settings)?;
    assert!(words.contains("serviceaccount"), "{words}");
    Ok(())
}

#[test]
fn a_server_that_is_not_who_it_says_is_not_believed() -> Result<()> {
    let context = ApiContext::own("kube-spoof")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let elsewhere = context.fixture.cluster.world.subfolder("elsewhere")?;
    Authority::new()?.write_kubeconfig(&elsewhere, &context.api.url(), "a-token")?;
    let objects = Objects::Kubeconfig(elsewhere.join("kubeconfig"));
    let settings = Settings { objects, ..context.settings() };
    let agent = Agent::spawn(&context.fixture.cluster.world.node, settings)?;
    denizen_tests::peers::api::context::until_error(&agent, "certificate")?;
    assert!(context.api.requests().is_empty(), "the token was sent to a stranger");
    context.until_unknown(10)?;
    assert_eq!(service_ips(10).len(), 2);
    Ok(())
}

/// Services of 4 endpoints.
const MANY: usize = 10_000;

/// MiB of its own memory at any time, in a test build. Measured: 43.
const AT_MOST: u64 = 47;

/// What was needed for a moment at the start decides how much memory a node has to keep free.
#[test]
fn ten_thousand_services_start_in_little_memory() -> Result<()> {
    let context = ApiContext::own("kube-memory")?;
    context.put_node()?;
    for n in 0..MANY {
        let name = format!("service-{n}");
        let address = |network: u32, n: usize| IpAddr::from(Ipv4Addr::from(network + n as u32));
        let port = [Port::tcp("http", 80, 8080)];
        let endpoints: Vec<_> =
            (0..4).map(|k| (address(0x0a80_0001, 4 * n + k), "another-node")).collect();
        context.api.put(&manifest::service(&name, &[address(0x0a60_0001, n)], &port))?;
        context.api.put(&manifest::slice(&name, &port, &endpoints))?;
    }
    let mut agent = context.spawn_agent()?;
    agent.wait_programmed(6 * START_TIMEOUT)?;
    assert_eq!(agent.status()?["services"], MANY);
    let memory = Memory::of(agent.pid())?;
    // A test build's program is larger than what is installed: its pages do not count.
    let own = (memory.most - memory.of_files) / 1024;
    ensure!(own <= AT_MOST, "{own} MiB of {AT_MOST}: {memory:?}");
    Ok(())
}
