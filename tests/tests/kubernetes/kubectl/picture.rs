//! `ui`: who may ask, and what a real browser shows.

pub mod ask;
mod browser;
mod load;
mod shop;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::packets::probe::{Outcome, Probe, SILENCE};
use denizen_tests::workstation::Workstation;

use self::ask::Picture;
use self::browser::Browser;
use self::shop::{ShopFault, ShopObjects, many_pods};
use super::explain::Shop;

/// What has not been seen by then never will.
const TIMEOUT: Duration = Duration::from_secs(90);

/// `DENIZEN_PICTURES` names a folder for pictures that somebody wants to look at.
fn pictures(workstation: &Workstation) -> PathBuf {
    match std::env::var_os("DENIZEN_PICTURES") {
        Some(folder) => folder.into(),
        None => workstation.folder.path().to_owned(),
    }
}

/// Each edge of the picture is in the table, with its verdict.
fn agree(page: &str) -> Result<usize> {
    let ids = |mark: &str| -> Vec<String> {
        let parts = page.split(mark).skip(1);
        let mut ids: Vec<String> =
            parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())).collect();
        ids.sort();
        ids
    };
    let (_, picture) = page.split_once("id=\"map\"").context("no picture")?;
    let (picture, _) = picture.split_once("id=\"rows\"").context("no table")?;
    let drawn: Vec<(&str, &str)> = picture
        .split("<g class=\"edge ")
        .skip(1)
        .filter_map(|part| {
            let verdict = part.split([' ', '"']).next()?;
            let (_, rest) = part.split_once("data-edge=\"")?;
            Some((rest.split_once('"')?.0, verdict))
        })
        .collect();
    ensure!(drawn.len() == ids("data-row=\"").len(), "{} edges: {page}", drawn.len());
    for (id, verdict) in &drawn {
        let (_, row) = page.split_once(&format!("data-row=\"{id}\"")).context("no row")?;
        let (row, _) = row.split_once("</tr>").context("no end of a row")?;
        ensure!(row.contains(&format!(">{verdict}</span>")), "{id}, {verdict}: {row}");
    }
    Ok(drawn.len())
}

#[test]
fn only_who_has_the_token_and_asks_here_is_answered() -> Result<()> {
    let workstation = Workstation::new("ui-token")?;
    ShopObjects::new(ShopFault::Nothing).put(&workstation)?;
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    let token = format!("Authorization: Bearer {}", picture.token);
    let host = |name: &str| format!("Host: {name}:{}", picture.port);
    let cases: [(&str, &[&str], u16); 13] = [
        ("/", &[], 200),
        ("/script.js", &[], 200),
        ("/picture", &["-H", &token], 200),
        ("/picture", &["-H", &token, "-H", &host("localhost")], 200),
        ("/picture", &[], 401),
        ("/explain?edge=e0", &[], 401),
        ("/elsewhere", &[], 401),
        ("/picture", &["-H", "Authorization: Bearer 0123"], 401),
        ("/", &["-H", &host("evil.example")], 421),
        ("/picture", &["-H", &token, "-H", "Host: 127.0.0.1:1"], 421),
        ("/picture", &["-H", &token, "-H", "Origin: http://evil.example"], 403),
        ("/picture", &["-H", &token, "-H", "Origin: null"], 403),
        ("/picture", &["-H", &token, "--data", "x=y"], 405),
    ];
    for (path, more, status) in cases {
        let reply = picture.fetch(path, more)?;
        ensure!(reply.status == status, "{path} {more:?}: {reply:?}");
        let policy = reply.header("content-security-policy").unwrap_or_default();
        ensure!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
        // Nothing of the cluster, and not the token.
        let tells = ["shop", &picture.token].iter().any(|word| reply.body.contains(word));
        ensure!(tells == (status == 200 && path == "/picture"), "{path}: {}", reply.body);
    }
    let own = format!("Origin: http://127.0.0.1:{}", picture.port);
    let seen = picture.fetch("/picture", &["-H", &token, "-H", &own])?;
    let tag = format!("If-None-Match: {}", seen.header("etag").context("no tag")?);
    ensure!(picture.fetch("/picture", &["-H", &token, "-H", &tag])?.status == 304);
    Ok(())
}

/// A shop that is well; one with a policy that drops; one with a service that nobody serves.
#[test]
fn a_browser_shows_who_talks_to_whom_and_what_is_refused() -> Result<()> {
    let parts: [(ShopFault, &[&str]); 3] = [
        (
            ShopFault::Nothing,
            &[
                "nothing is refused, dropped or unanswered",
                "All 3 nodes answered",
                "service shop/cart",
            ],
        ),
        (
            ShopFault::Policy,
            &[">dropped</span>", "no policy permits this to reach the pod: shop/db-only"],
        ),
        (
            ShopFault::Endpoint,
            &[
                ">refused</span>",
                "no endpoints: refuse at once",
                "no ready endpoint",
                ">unanswered</span>",
                "2 of 3 nodes answered",
                "CrashLoopBackOff",
            ],
        ),
    ];
    for (fault, expected) in parts {
        let workstation = Workstation::new(&format!("ui-{fault:?}").to_lowercase())?;
        ShopObjects::new(fault).put(&workstation)?;
        let picture = Picture::of(&workstation, &["--every", "1h"])?;
        picture.until(TIMEOUT, |page| expected.iter().all(|part| page.contains(part)))?;
        let page = picture.browse(None)?;
        let edges = agree(&page)?;
        ensure!(edges > 15, "{edges}: {page}");
        for part in expected {
            ensure!(page.contains(part), "{part} in {page}");
        }
        ensure!(page.contains(">live</p>"), "{page}");
        ensure!(!page.contains("owned</title>"), "a name was run: {page}");
        ensure!(page.contains("&lt;img src=x"), "the name is shown: {page}");
        // The namespaces' names apart, nothing leads anywhere.
        let addresses = page.matches("://").count();
        ensure!(
            addresses == page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count(),
            "{page}"
        );
        ensure!(page == picture.browse(None)?, "two pages of one state differ");
        for (name, size) in [("wide", "1500,1500"), ("narrow", "390,1600")] {
            let file =
                pictures(&workstation).join(format!("ui-{fault:?}-{name}.png").to_lowercase());
            picture.browse(Some((&file, size)))?;
            let bytes = std::fs::read(&file).with_context(|| format!("no {}", file.display()))?;
            // An error page has far less to it.
            ensure!(bytes.starts_with(b"\x89PNG") && bytes.len() > 30_000, "{} bytes", bytes.len());
        }
    }
    Ok(())
}

#[test]
fn a_click_on_an_edge_explains_its_ends() -> Result<()> {
    let workstation = Workstation::new("ui-explain")?;
    ShopObjects::new(ShopFault::Policy).put(&workstation)?;
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    let page = picture.until(TIMEOUT, |page| page.contains(">dropped</span>"))?;
    let (before, _) = page.split_once(">dropped</span>").context("no edge")?;
    let id = before.rsplit_once("data-row=\"").and_then(|(_, rest)| rest.split_once('"'));
    let id = id.context("no row")?.0;
    let explained = picture.body(&format!("/explain?edge={id}"))?;
    let refused = "shop/batch-0 to 10.0.2.60:5432/tcp: refused";
    ensure!(explained.starts_with(refused), "{explained}");
    ensure!(picture.body("/explain?edge=e0")?.contains("not seen any more"));
    Ok(())
}

/// Search, edges, their explanation and the way back, without a mouse; a click does the same. The
/// browser asks nobody but the program.
#[test]
fn a_keyboard_is_enough_and_nobody_else_is_asked() -> Result<()> {
    let workstation = Workstation::new("ui-keys")?;
    ShopObjects::new(ShopFault::Policy).put(&workstation)?;
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    picture.until(TIMEOUT, |page| page.contains(">dropped</span>"))?;
    let mut browser = Browser::open(workstation.netns(), &picture.address(), "1500,1300")?;
    let edges = "document.querySelectorAll('#map .edge').length";
    browser.until(&format!("{edges} > 15"))?;
    browser.press("/", "/")?;
    browser.until("document.activeElement.id == 'search'")?;
    for letter in ["b", "a", "t", "c", "h"] {
        browser.press(letter, letter)?;
    }
    // Two edges of the job: what it asks, and what it may not.
    browser.until(&format!("{edges} == 2"))?;
    browser.evaluate("document.getElementById('scroll').focus()")?;
    browser.press("ArrowDown", "")?;
    browser.until("document.activeElement.matches('.edge')")?;
    browser.evaluate("document.querySelector('#map .edge.dropped').focus()")?;
    browser.press("Enter", "\r")?;
    let text = "document.getElementById('explained').textContent";
    browser.until(&format!("{text}.startsWith('shop/batch-0 to 10.0.2.60:5432/tcp: refused')"))?;
    let folder = pictures(&workstation);
    browser.photograph(&folder.join("ui-explained.png"))?;
    browser.press("Escape", "")?;
    browser.until("document.getElementById('explanation').hidden")?;
    browser.press("Escape", "")?;
    browser.until(&format!("{edges} > 15"))?;
    browser.click("[data-search=\"shop/payment\"]")?;
    browser.until("document.getElementById('search').value == 'shop/payment'")?;
    browser.until(&format!("{edges} < 10"))?;
    browser.click("tr[data-row] button")?;
    browser.until("!document.getElementById('explanation').hidden")?;
    browser.evaluate("document.getElementById('close').click()")?;
    browser.click("#problems")?;
    browser.press("Escape", "")?;
    browser.until(&format!("{edges} == 1"))?;
    browser.click("#problems")?;
    browser.until(&format!("{edges} > 15"))?;
    browser.darken()?;
    browser.photograph(&folder.join("ui-dark.png"))?;
    let own = format!("http://127.0.0.1:{}/", picture.port);
    ensure!(browser.requests.len() > 5, "{:?}", browser.requests);
    for url in &browser.requests {
        ensure!(url.starts_with(&own), "{url}");
    }
    Ok(())
}

#[test]
fn search_and_folded_namespaces_are_asked_of_the_program() -> Result<()> {
    let workstation = Workstation::new("ui-many")?;
    many_pods(&workstation, 3000)?;
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    let started = Instant::now();
    let page = picture.body("/picture")?;
    eprintln!("3000 pods: {:?}", started.elapsed());
    let count =
        |page: &str| ["<g class=\"box ", "<g class=\"edge "].map(|mark| page.matches(mark).count());
    let [boxes, edges] = count(&page);
    ensure!((30..=200).contains(&boxes) && (100..=500).contains(&edges), "{boxes}, {edges}");
    let found = count(&picture.body("/picture?search=app")?);
    ensure!(found[0] == 200 && (300..=500).contains(&found[1]), "{found:?}");
    ensure!(page.contains("services and nodes are folded"), "{page}");
    let kilobytes = picture.kilobytes("VmHWM:")?;
    eprintln!("{boxes} boxes, {edges} edges, {} bytes, {kilobytes} KB", page.len());
    ensure!(kilobytes < 200_000, "{kilobytes} KB");
    let found = picture.body("/picture?search=NS-07%2Fapp-01")?;
    ensure!(found.contains("ns-07/app-01") && !found.contains(">ns-09</text>"), "{found}");
    let open = picture.body("/picture?namespace=ns-07")?;
    let own = |page: &str| page.matches("ns-07/app-").count();
    ensure!(own(&open) > own(&page) && own(&open) > 30, "{} and {}", own(&open), own(&page));
    picture.browse(Some((&pictures(&workstation).join("ui-many.png"), "1700,1400")))?;
    Ok(())
}

/// Who may read no objects sees addresses, and what is missing; who does not answer is named.
#[test]
fn what_cannot_be_read_is_said_in_the_picture() -> Result<()> {
    let workstation = Workstation::new("ui-rights")?;
    ShopObjects::new(ShopFault::Nothing).put(&workstation)?;
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["services", "endpointslices"]);
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    let page = picture.body("/picture")?;
    ensure!(page.contains("needs: list services of all namespaces"), "{page}");
    ensure!(agree(&page)? > 5, "{page}");
    for request in workstation.api.requests() {
        let is_needless = ["secrets", "configmaps"].iter().any(|word| request.path.contains(word));
        ensure!(!is_needless && request.method == "GET", "{request:?}");
    }
    drop(picture);
    workstation.api.behave(|behaviour| behaviour.forbidden = vec!["pods"]);
    let picture = Picture::of(&workstation, &["--every", "1h"])?;
    let page = picture.body("/picture")?;
    ensure!(page.contains("needs: list pods"), "{page}");
    Ok(())
}

/// Two real nodes: a policy drops what a pod of one sends to the other.
#[test]
fn real_agents_show_what_a_policy_drops() -> Result<()> {
    let shop = Shop::new()?;
    shop.hold(&[("far", "Ingress")])?;
    let picture = Picture::of(&shop.workstation, &["--every", "1s"])?;
    let to = SocketAddr::new(shop.far.addresses[0], 8080);
    let done = AtomicBool::new(false);
    let page = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                Probe::tcp(to).timeout(SILENCE).send_in(&shop.client.netns);
            }
        });
        let page = picture.until(TIMEOUT, |page| page.contains(">dropped</span>"));
        done.store(true, Ordering::Relaxed);
        page
    })?;
    names_what_was_dropped(&page)
}

/// The row of the table: who, whom, and by which policy.
fn names_what_was_dropped(page: &str) -> Result<()> {
    let (before, after) = page.split_once(">dropped</span>").context("no edge")?;
    let (_, row) = before.rsplit_once("<tr").context("no row")?;
    for part in ["default/client", "default/far", "8080/tcp"] {
        ensure!(row.contains(part), "{part} in {row}");
    }
    let (why, _) = after.split_once("</tr>").context("no end of a row")?;
    for part in ["no policy permits this to reach the pod", "default/deny-far"] {
        ensure!(why.contains(part), "{part} in {why}");
    }
    Ok(())
}

/// The kernel has noted them, and the first round asks for that.
#[test]
fn real_agents_show_what_was_dropped_before_anybody_looked() -> Result<()> {
    let shop = Shop::new()?;
    shop.hold(&[("far", "Ingress")])?;
    let to = SocketAddr::new(shop.far.addresses[0], 8080);
    assert_eq!(Probe::tcp(to).timeout(SILENCE).send_in(&shop.client.netns), Outcome::Dropped);
    let picture = Picture::of(&shop.workstation, &["--every", "1h"])?;
    let page = picture.body("/picture")?;
    names_what_was_dropped(&page)?;
    let drops = shop.workstation.json(&["drops"], 0)?.json()?;
    let flow = &drops["flows"][0];
    assert_eq!(flow["destination"]["name"], "default/far", "{drops:#}");
    ensure!(flow["packets"] == flow["nodes"][0]["packets"], "{flow:#}");
    ensure!(flow["policy"].as_str().is_some_and(|policy| policy.contains("deny-far")), "{flow:#}");
    Ok(())
}
