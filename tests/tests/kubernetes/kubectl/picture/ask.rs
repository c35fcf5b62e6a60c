//! The command `ui` while it runs, and who asks it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::eventually::observed;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::http::{Reply, fetch};
use denizen_tests::workstation::Workstation;

/// The command. It ends with this value.
pub struct Picture<'a> {
    workstation: &'a Workstation,
    child: Child,
    pub port: u16,
    pub token: String,
}

impl<'a> Picture<'a> {
    pub fn of(workstation: &'a Workstation, words: &[&str]) -> Result<Self> {
        let mut command = workstation.command(&[&["ui"], words].concat())?;
        command.stdout(Stdio::piped());
        let mut child = workstation.netns().run(|| command.spawn())??;
        let mut url = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut url)?;
        let parts =
            url.trim().strip_prefix("http://127.0.0.1:").and_then(|url| url.split_once("/#"));
        let (port, token) = parts.with_context(|| format!("no address: {url:?}"))?;
        Ok(Self { workstation, child, port: port.parse()?, token: token.to_owned() })
    }

    /// What a browser is to open.
    pub fn address(&self) -> String {
        self.url(&format!("/#{}", self.token))
    }

    fn netns(&self) -> &Netns {
        self.workstation.netns()
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn fetch(&self, path: &str, more: &[&str]) -> Result<Reply> {
        fetch(self.netns(), &self.url(path), more)
    }

    /// With the token.
    pub fn body(&self, path: &str) -> Result<String> {
        let reply = self.fetch(path, &["-H", &format!("Authorization: Bearer {}", self.token)])?;
        anyhow::ensure!(reply.status == 200, "{reply:?}");
        Ok(reply.body)
    }

    /// The parts of the page, once they are so.
    pub fn until(&self, bound: Duration, so: impl Fn(&str) -> bool) -> Result<String> {
        self.until_at("/picture", bound, so)
    }

    /// The same with a query.
    pub fn until_at(
        &self,
        path: &str,
        bound: Duration,
        so: impl Fn(&str) -> bool,
    ) -> Result<String> {
        observed("a picture like that", bound, || self.body(path), |page| so(page))
    }

    /// What a browser has made of the page; with `picture`, also how it looks.
    pub fn browse(&self, picture: Option<(&Path, &str)>) -> Result<String> {
        let profile = tempfile::tempdir_in(self.workstation.folder.path())?;
        let mut arguments = vec![
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--hide-scrollbars".to_owned(),
            // Until what the script fetches is there.
            "--virtual-time-budget=3000".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        match picture {
            Some((file, size)) => {
                arguments.push(format!("--window-size={size}"));
                arguments.push(format!("--screenshot={}", file.display()));
            }
            None => arguments.push("--dump-dom".to_owned()),
        }
        arguments.push(self.address());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.netns().output("chromium-headless-shell", &arguments)
    }

    /// The memory that it has (`VmRSS:`), or the most that it had (`VmHWM:`).
    pub fn kilobytes(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.with_context(|| format!("no {field}"))?.parse()?)
    }

    /// The processor time that it has used.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program, which comes before, may have spaces.
        let (_, fields) = stat.rsplit_once(") ").context("no name")?;
        // proc(5): utime and stime are the 14th and 15th field, in hundredths of a second.
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        Ok(Duration::from_millis(10 * ticks.sum::<Result<u64, _>>()?))
    }
}

impl Drop for Picture<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
