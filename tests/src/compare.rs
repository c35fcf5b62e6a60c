//! Denizen beside kube-proxy, or beside `nft -f` of kube-proxy's rules, in one run: what
//! `tests/compare` measures.
//!
//! | file | knows |
//! | --- | --- |
//! | `test_bed` | the node, its client, the endpoints and the API server |
//! | `contender` | how each one is started, changed and ended |
//! | `measured` | what is measured, in which order |
//! | `table` | the figures, side by side |
//! | `chart` | the same as a picture |

mod chart;
mod contender;
mod measured;
mod table;
pub mod test_bed;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use self::contender::Contender;
pub use self::contender::KubeProxyMode;
use self::table::Comparison;
use self::test_bed::TestBed;

/// What is compared with what.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// The program `denizen-agent`.
    pub denizen: PathBuf,
    /// The program `kube-proxy`, and its mode; `None`: `nft -f` of the rules that its nftables mode
    /// would write.
    pub kube_proxy: Option<(PathBuf, KubeProxyMode)>,
    /// The program `kube-apiserver`, with `etcd` beside it; `None`: the tests' own API server.
    pub apiserver: Option<PathBuf>,
    /// How many services; each has four endpoints.
    pub services: usize,
    /// How many connections are timed.
    pub connections: usize,
    /// How many changes are timed.
    pub changes: usize,
    /// The folder that gets the table and the chart.
    pub out: PathBuf,
}

/// Measures one contender after the other, each on a test bed of its own; writes and returns the
/// table.
pub fn compare(options: &CompareOptions) -> Result<String> {
    let other = match &options.kube_proxy {
        Some((program, mode)) => Contender::KubeProxy { program: program.clone(), mode: *mode },
        None => Contender::KubeProxyRules,
    };
    let contenders = [Contender::Denizen { program: options.denizen.clone() }, other];
    let mut names = Vec::new();
    let mut figures = Vec::new();
    for contender in &contenders {
        let name = contender.name();
        let test_bed = TestBed::new(options.services, options.apiserver.as_deref())?;
        eprintln!("measuring {name}");
        figures.push(measured::measured(contender, &test_bed, options).context(name.clone())?);
        names.push(name);
    }
    let comparison = Comparison::new(names, &figures);
    let table = format!("{}\n{}", surroundings(options)?, comparison.table());
    fs::create_dir_all(&options.out)?;
    let write = |name: &str, text: &str| {
        let path = options.out.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("compare.md", &table)?;
    write("compare.svg", &chart::svg(&comparison))?;
    Ok(table)
}

/// What the figures depend on: the kernel, the API server and so on.
fn surroundings(options: &CompareOptions) -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let server = match options.apiserver {
        Some(_) => "a real kube-apiserver",
        None => "the tests' own API server",
    };
    Ok(format!(
        "{} services of {} endpoints, IPv4; {server}; Linux {}; {} processors. Changes: the median of \
         {}. Connections: the median of {}.\n",
        options.services,
        test_bed::ENDPOINTS,
        kernel.trim(),
        std::thread::available_parallelism()?,
        options.changes,
        options.connections,
    ))
}
