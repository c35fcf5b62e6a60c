//! `tests/compare` runs this: see [`denizen_tests::compare`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::compare::{CompareOptions, KubeProxyMode, compare};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parsed(&words).and_then(|options| compare(&options)) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parsed(words: &[String]) -> Result<CompareOptions> {
    let (mut kube_proxy, mut mode, mut rules_only) = (None, KubeProxyMode::Nftables, false);
    let mut options = CompareOptions {
        denizen: PathBuf::new(),
        kube_proxy: None,
        apiserver: None,
        services: 1_000,
        connections: 2_000,
        changes: 10,
        out: PathBuf::from("."),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--shape" {
            rules_only = true;
            continue;
        }
        let value = words.next().with_context(|| format!("{word}: its value is missing"))?;
        match word.as_str() {
            "--denizen" => options.denizen = value.into(),
            "--kube-proxy" => kube_proxy = Some(PathBuf::from(value)),
            "--mode" => mode = value.parse()?,
            "--apiserver" => options.apiserver = Some(value.into()),
            "--services" => options.services = number(word, value)?,
            "--connections" => options.connections = number(word, value)?,
            "--changes" => options.changes = number(word, value)?,
            "--out" => options.out = value.into(),
            _ => bail!("what is {word}?"),
        }
    }
    ensure!(rules_only != kube_proxy.is_some(), "either --kube-proxy FILE or --shape");
    options.kube_proxy = kube_proxy.map(|program| (program, mode));
    Ok(options)
}

fn number(flag: &str, value: &str) -> Result<usize> {
    let number = usize::from_str(value).ok().filter(|number| (1..=50_000).contains(number));
    number.with_context(|| format!("{flag} {value}: a number from 1 to 50000"))
}
