//! A real browser that does what it is asked to, by its own protocol for that (DevTools).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use denizen_tests::eventually::observed;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::http::fetch;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

/// What has not come about by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An open page. The browser ends with this value.
pub struct Browser {
    child: Child,
    runtime: Runtime,
    socket: WebSocketStream<TcpStream>,
    number: u64,
    /// The addresses of all requests so far.
    pub requests: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page, from inside `netns`.
    pub fn open(netns: &Netns, url: &str, size: &str) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let mut command = Command::new("chromium-headless-shell");
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--remote-debugging-port=0", &format!("--window-size={size}")])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stderr(Stdio::piped());
        let mut child = netns.run(|| command.spawn())??;
        let lines = BufReader::new(child.stderr.take().context("no output")?).lines();
        let output = lines.map_while(Result::ok).find(|line| line.contains("ws://"));
        let output = output.context("the browser says no address")?;
        let port = output.split([':', '/']).find_map(|part| part.parse::<u16>().ok());
        let port = port.with_context(|| output.clone())?;
        let list = fetch(netns, &format!("http://127.0.0.1:{port}/json/list"), &[])?.json()?;
        let page = list[0]["webSocketDebuggerUrl"].as_str().context("no page")?.to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connect = async {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            anyhow::Ok(client_async(page, stream).await?.0)
        };
        let socket = netns.run(|| runtime.block_on(connect))??;
        let requests = Vec::new();
        let mut browser = Self { child, runtime, socket, number: 0, requests, _profile: profile };
        browser.call("Network.enable", json!({}))?;
        browser.call("Page.enable", json!({}))?;
        browser.call("Page.navigate", json!({ "url": url }))?;
        Ok(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.number += 1;
        let number = self.number;
        let request = json!({ "id": number, "method": method, "params": params }).to_string();
        let Self { runtime, socket, requests, .. } = self;
        runtime.block_on(async {
            socket.send(Message::text(request)).await?;
            loop {
                let message = socket.next().await.context("the browser is gone")??;
                let Message::Text(text) = message else { continue };
                let output: Value = serde_json::from_str(&text)?;
                if output["method"] == "Network.requestWillBeSent" {
                    let url = &output["params"]["request"]["url"];
                    requests.push(url.as_str().unwrap_or_default().to_owned());
                }
                if output["id"] == number {
                    ensure!(output["error"].is_null(), "{method}: {output}");
                    return Ok(output["result"].clone());
                }
            }
        })
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({ "expression": expression, "returnByValue": true });
        let output = self.call("Runtime.evaluate", params)?;
        ensure!(output["exceptionDetails"].is_null(), "{expression}: {output:#}");
        Ok(output["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) -> Result<()> {
        observed(expression, TIMEOUT, || self.evaluate(expression), |value| value == true).map(drop)
    }

    /// Presses a key: its name, and the text that it writes.
    pub fn press(&mut self, key: &str, text: &str) -> Result<()> {
        let kinds = [if text.is_empty() { "rawKeyDown" } else { "keyDown" }, "keyUp"];
        kinds.into_iter().try_for_each(|kind| {
            let params = json!({ "type": kind, "key": key, "text": text });
            self.call("Input.dispatchKeyEvent", params).map(drop)
        })
    }

    /// Clicks where something is.
    pub fn click(&mut self, selector: &str) -> Result<()> {
        let place = format!(
            "(() => {{ const of = document.querySelector({}); of.scrollIntoView({{ block: 'center' }}); \
             const at = of.getBoundingClientRect(); \
             return [at.x + at.width / 2, at.y + at.height / 2]; }})()",
            json!(selector)
        );
        let at = self.evaluate(&place)?;
        ["mousePressed", "mouseReleased"].into_iter().try_for_each(|kind| {
            let params = json!({ "type": kind, "x": at[0], "y": at[1], "button": "left",
                                 "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params).map(drop)
        })
    }

    /// How the page looks to who wants dark pages.
    pub fn darken(&mut self) -> Result<()> {
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
        self.call("Emulation.setEmulatedMedia", dark).map(drop)
    }

    /// Writes how it looks.
    pub fn photograph(&mut self, file: &Path) -> Result<()> {
        let output = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let data = output["data"].as_str().context("no picture")?;
        Ok(std::fs::write(file, BASE64.decode(data.as_bytes())?)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
