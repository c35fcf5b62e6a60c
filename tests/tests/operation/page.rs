//! The page for people, in a real browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::eventually::observed;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::{Outcome, Protocol};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use serde_json::Value;

const METRICS: u16 = 10249;
const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Wide as a desk's screen, and as a phone's.
const SIZES: [(&str, &str); 2] = [("wide", "1280,1700"), ("narrow", "390,2600")];

fn page(path: &str) -> String {
    url(ip("127.0.0.1"), METRICS, path)
}

/// What a browser on the node has made of a page, scripts and all; with `picture`, also how it
/// looks.
fn browse(fixture: &Fixture, url: &str, picture: Option<(&Path, &str)>) -> Result<String> {
    let profile = fixture.cluster.world.subfolder("browser")?;
    let mut arguments = vec![
        "--headless".to_owned(),
        "--no-sandbox".to_owned(),
        "--disable-gpu".to_owned(),
        "--hide-scrollbars".to_owned(),
        format!("--user-data-dir={}", profile.display()),
    ];
    match picture {
        Some((file, size)) => {
            arguments.push(format!("--window-size={size}"));
            arguments.push(format!("--screenshot={}", file.display()));
        }
        None => arguments.push("--dump-dom".to_owned()),
    }
    arguments.push(url.to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    fixture.cluster.world.node.output("chromium-headless-shell", &arguments)
}

fn until(node: &Netns, path: &str, part: &str) -> Result<String> {
    let ask = || fetch(node, &page(path), &[]);
    let reply =
        observed(&format!("{part} at {path}"), TIMEOUT, ask, |reply| reply.body.contains(part))?;
    Ok(reply.body)
}

/// A page of somewhere else may have its own name lead here (DNS rebinding), and read what the
/// browser fetches. Health tells nothing that is worth it, and is asked by probes with whatever
/// name.
#[test]
fn page_and_metrics_are_for_those_who_ask_by_this_nodes_address() -> Result<()> {
    let cluster = Cluster::new("page-host", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let node = &cluster.world.node;
    until(node, "/healthz", "\"healthy\":true")?;
    for (path, elsewhere) in [
        ("/", 421),
        ("/style.css", 421),
        ("/metrics", 421),
        ("/proxyMode", 421),
        ("/healthz", 200),
        ("/livez", 200),
    ] {
        let hosts = [("evil.example:10249", elsewhere), ("localhost:10249", 200), ("[::1]", 200)];
        for (host, status) in hosts {
            let reply = fetch(node, &page(path), &["--header", &format!("Host: {host}")])?;
            assert_eq!(reply.status, status, "{path}, {host}: {reply:?}");
        }
    }
    Ok(())
}

/// A name that a browser would run, were it not escaped; it would give itself away by the page's
/// title.
const HOSTILE: &str =
    "x<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

fn furnish(fixture: &Fixture) -> Result<()> {
    let manifests = &fixture.cluster.manifests;
    manifests.put(
        "web",
        &fixture.service("web", 10, &HTTP, &[Host::Bridged, Host::Routed, Host::Remote])?,
    )?;
    manifests.put("lonely", &fixture.service("lonely", 20, &HTTP, &[])?)?;
    let ports = [Port::tcp("http", 80, PORT).at_node(30080)];
    let mut shop = fixture.service("shop", 30, &ports, &[Host::Remote])?;
    shop[0]["spec"]["type"] = "LoadBalancer".into();
    shop[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    shop[0]["spec"]["healthCheckNodePort"] = 32100.into();
    shop[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    manifests.put("shop", &shop)?;
    manifests.put("hostile", &[manifest::service(HOSTILE, &service_ips(40), &HTTP)])?;
    manifests.put("pods", &fixture.pod_objects("client", "web"))?;
    let clients = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("role", "client"))]);
    let policy = NetworkPolicy::new("default", "only-clients", LabelSelector::label("role", "web"));
    let policies =
        PolicyWorld { policies: vec![policy.ingress([clients])], ..PolicyWorld::default() };
    manifests.put("policies", &policies.manifests())
}

/// `DENIZEN_PICTURES` names a folder for pictures that somebody wants to look at.
fn pictures(fixture: &Fixture) -> Result<PathBuf> {
    match std::env::var_os("DENIZEN_PICTURES") {
        Some(folder) => Ok(folder.into()),
        None => fixture.cluster.world.subfolder("pictures"),
    }
}

#[test]
fn a_browser_shows_what_this_node_does() -> Result<()> {
    let fixture = Fixture::new("page-see")?;
    furnish(&fixture)?;
    let _agent = fixture.cluster.start_agent_with(["--network-policy=on"])?;
    let node = &fixture.cluster.world.node;
    until(node, "/", "lonely")?;
    until(node, "/", "ingress isolated")?;
    let lonely = SocketAddr::new(service_ips(20)[0], 80);
    assert_eq!(fixture.probe(Host::Routed, lonely, Protocol::Tcp)?, Outcome::Refused);
    let from = format!("{}@{}", fixture.bridged.addresses[0], fixture.bridged.input_interface);
    let asked = page(&format!("/?from={from}&to=172.30.0.10:80/tcp"));
    let seen = browse(&fixture, &asked, None)?;
    assert!(!seen.contains("The newest"), "nobody asked for connections: {seen}");
    for part in [
        "Count this node's connections",
        "all programmed",
        "default/web",
        "default/shop",
        "external traffic: Local",
        "session affinity 10800 s",
        "health-check node port 32100",
        "refused: no endpoint",
        "dropped: no endpoint on this node",
        "forwarded",
        "Last syncs",
        "no endpoints: refuse at once",
        "Enforced by Denizen",
        "ingress isolated",
        "egress open",
        "default/only-clients",
        &fixture.bridged.addresses[0].to_string(),
        &fixture.address(Host::Remote, ip("10.0.0.1"))?.to_string(),
    ] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    assert!(!seen.contains("owned</title>"), "a name was run: {seen}");
    assert!(seen.contains("&lt;img src=x"), "the name is shown: {seen}");
    let folder = pictures(&fixture)?;
    for (name, size) in SIZES {
        let file = folder.join(format!("page-{name}.png"));
        browse(&fixture, &asked, Some((&file, size)))?;
        let picture = std::fs::read(&file).with_context(|| format!("no {}", file.display()))?;
        assert!(picture.starts_with(b"\x89PNG"), "{name}");
        // A page without its style, or an error page, has far less to it.
        assert!(picture.len() > 40_000, "{name}: {} bytes", picture.len());
    }
    Ok(())
}

/// The same as `denizen-agent connections` shows.
#[test]
fn connections_are_counted_for_those_who_ask() -> Result<()> {
    let fixture = Fixture::new("page-conns")?;
    let node = &fixture.cluster.world.node;
    node.sysctl("net.netfilter.nf_conntrack_timestamp", "1")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Bridged])?)?;
    let _agent = fixture.cluster.start_agent()?;
    until(node, "/", "default/web")?;
    for who in [Host::Routed, Host::Outside, Host::Outside] {
        let outcome = fixture.probe(who, SocketAddr::new(service_ips(10)[0], 80), Protocol::Tcp)?;
        anyhow::ensure!(outcome.endpoint().is_some(), "{who:?}: {outcome:?}");
    }
    let page = until(node, "/?connections=yes", "The newest")?;
    let row = "<th scope=\"row\">default/web:http</th><td class=\"number\">3</td>\
               <td class=\"number\">2</td>";
    assert!(page.contains(row), "no {row}: {page}");
    let newest = format!("({}) to 172.30.0.10:80 (default/web:http), endpoint", "default/routed");
    assert!(page.contains(&newest), "no {newest}: {page}");
    Ok(())
}

#[test]
fn searching_and_turning_pages_need_no_script() -> Result<()> {
    let fixture = Fixture::new("page-find")?;
    let many: Vec<Value> = (0..120)
        .map(|n| manifest::service(&format!("many-{n:03}"), &[ip(&format!("172.31.0.{n}"))], &HTTP))
        .collect();
    fixture.cluster.manifests.put("many", &many)?;
    let _agent = fixture.cluster.start_agent()?;
    let node = &fixture.cluster.world.node;
    let first = until(node, "/", "many-049")?;
    assert!(first.contains("1–50 of 120") && !first.contains("many-050"), "{first}");
    let last = until(node, "/?skip=100", "many-119")?;
    assert!(!last.contains("many-099") && last.contains("previous"), "{last}");
    for (search, found, missing) in
        [("y-07", "many-077", "many-080"), ("172.31.0.77", "many-077", "many-078")]
    {
        let page = until(node, &format!("/?q={search}"), found)?;
        assert!(!page.contains(missing), "{page}");
    }
    Ok(())
}

/// Others' pages must not read it, frame it, or have a browser do anything here.
#[test]
fn the_page_is_for_nobody_elses_page() -> Result<()> {
    let cluster = Cluster::new("page-safe", &Value::Null)?;
    let _agent = cluster.start_agent()?;
    let node = &cluster.world.node;
    let ask = |more: &[&str]| fetch(node, &page("/"), more);
    let reply = ask(&[])?;
    assert_eq!(reply.status, 200, "{reply:?}");
    let policy = reply.header("content-security-policy").unwrap_or_default();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(!reply.body.contains("<script"), "{}", reply.body);
    assert_eq!(reply.header("x-frame-options"), Some("DENY"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(ask(&["--data", "from=x"])?.status, 405);
    let wrong = fetch(node, &page("/?from=nobody&to=nowhere"), &[])?;
    assert!(wrong.status == 200 && wrong.body.contains("nobody"), "{wrong:?}");
    Ok(())
}
