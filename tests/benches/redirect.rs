//! What redirection costs a pod's start: the whole process of our plugin's ADD, from spawn to exit,
//! without and with `redirect`, next to linkerd-init's commands, executed as linkerd-init does: one
//! process each. `cargo build-plugin` first; then `cargo bench --bench redirect`.
//!
//! Each turn is a new pod, as in a cluster. Compare the ratios of one run: times depend on the
//! machine. The candidates take turns, so that a disturbance affects all of them alike.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use denizen_tests::bench::Bench;
use denizen_tests::node::cni::{Call, Namespace, PluginContext, installed, run_here};
use denizen_tests::peers::linkerd_init::{DEFAULT, linkerd_init};
use serde_json::{Value, json};

const ROUNDS: usize = 100;
const RANGES: [&str; 2] = ["10.85.0.0/16", "fd00:85::/64"];

/// What is measured.
#[derive(Clone, Copy)]
enum RedirectCase {
    /// Our ADD of a pod that is not selected.
    Plain,
    /// Our ADD of a pod that is selected, with this `verify`.
    Redirected(&'static str),
    Commands,
}

struct RedirectCandidate {
    name: &'static str,
    case: RedirectCase,
    times: Vec<Duration>,
}

impl RedirectCandidate {
    /// This percentile of the turns. A disturbance can only make a turn longer.
    fn quantile(&self, percent: usize) -> Duration {
        self.times[self.times.len() * percent / 100]
    }
}

fn candidates() -> Vec<RedirectCandidate> {
    let candidate = |name, case| RedirectCandidate { name, case, times: Vec::new() };
    vec![
        candidate("ADD of a pod that is not selected", RedirectCase::Plain),
        candidate("ADD with redirect, verify none", RedirectCase::Redirected("none")),
        candidate("ADD with redirect, verify connect", RedirectCase::Redirected("connect")),
        candidate("linkerd-init's commands", RedirectCase::Commands),
    ]
}

/// Makes one new pod behind the real `bridge`; returns how long the work for this case takes.
fn turn(context: &PluginContext, case: RedirectCase) -> Duration {
    let pod = Namespace::new();
    let call = Call::new("web-0", &pod);
    let first = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true });
    let mut chain = context.chain("1.0.0", first, &RANGES);
    chain.plugins[0]["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let result = chain.call(&context.node, &call, "ADD", &chain.plugins[0], None).unwrap();
    let took = match case {
        RedirectCase::Plain => add(context, &call, None, &result),
        RedirectCase::Redirected(verify) => add(context, &call, Some(verify), &result),
        RedirectCase::Commands => commands(&pod),
    };
    match case {
        RedirectCase::Plain | RedirectCase::Redirected(_) => {
            installed_takes(context, &call, "DEL");
        }
        RedirectCase::Commands => {}
    }
    chain.call(&context.node, &call, "DEL", &chain.plugins[0], Some(&result)).unwrap();
    took
}

/// The file that is the standard input of our plugin.
fn input(context: &PluginContext) -> PathBuf {
    context.folder().join("input")
}

/// How long a command of the plugin takes, as it is installed.
#[expect(clippy::disallowed_methods, reason = "this is what a bench is for")]
fn installed_takes(context: &PluginContext, call: &Call, command: &str) -> Duration {
    let (variables, input) = (call.environment(command), File::open(input(context)).unwrap());
    // In the node's own thread, so that only the process is measured.
    context.node.run(move || {
        let begun = Instant::now();
        let done = run_here(&installed(), variables, input);
        let took = begun.elapsed();
        assert!(done.success());
        took
    })
}

#[expect(clippy::disallowed_methods, reason = "this is what a bench is for")]
fn add(
    context: &PluginContext,
    call: &Call,
    verify: Option<&'static str>,
    result: &Value,
) -> Duration {
    const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";
    let injected = if verify.is_some() { "linkerd.io/proxy-version" } else { "app" };
    let mut ours = context.ours();
    ours["cniVersion"] = "1.0.0".into();
    ours["name"] = "pods".into();
    ours["prevResult"] = result.clone();
    ours["runtimeConfig"] = json!({ CAPABILITY: { injected: "edge-26.8.1" } });
    ours["redirect"] = json!({ "profile": "linkerd", "verify": verify.unwrap_or("connect") });
    fs::write(input(context), ours.to_string()).unwrap();
    installed_takes(context, call, "ADD")
}

/// linkerd-init's commands. It reads what is there first.
#[expect(clippy::disallowed_methods, reason = "this is what a bench is for")]
fn commands(pod: &Namespace) -> Duration {
    let begun = Instant::now();
    for program in ["iptables-save", "ip6tables-save"] {
        let mut save = Command::new(program);
        save.args(["-t", "nat"]).stdout(Stdio::null());
        assert!(pod.spawn(save).wait().unwrap().success());
    }
    linkerd_init(pod, &DEFAULT);
    begun.elapsed()
}

/// Prints the times; returns whether the goals are met.
fn report(all: &mut [RedirectCandidate]) -> bool {
    println!("{ROUNDS} new pods each                      median   fastest tenth");
    for one in &mut *all {
        one.times.sort_unstable();
        let [median, fast] = [50, 10].map(|percent| one.quantile(percent).as_secs_f64() * 1e3);
        println!("  {:<36} {median:>8.3} ms {fast:>9.3} ms", one.name);
    }
    goals(all, 10, "the fastest tenth");
    goals(all, 50, "the medians")
}

/// Compares the same percentile of all candidates with the goals.
fn goals(all: &[RedirectCandidate], percent: usize, how: &str) -> bool {
    let times: Vec<Duration> = all.iter().map(|one| one.quantile(percent)).collect();
    let &[plain, redirected, verified, commands] = times.as_slice() else {
        unreachable!("there are four candidates")
    };
    let more = redirected.saturating_sub(plain);
    let ratio = commands.div_duration_f64(more.max(Duration::from_micros(1)));
    let [more_ms, tried] =
        [more, verified.saturating_sub(redirected)].map(|time| time.as_secs_f64() * 1e3);
    println!("{how}: redirection takes {more_ms:.3} ms (goal: at most 1 ms), and {tried:.3} ms");
    println!("    more to be tried by connections of both versions of IP;");
    println!("    linkerd-init's commands take {ratio:.0} times as long (goal: at least 20),");
    println!("    and {:.1} times a whole ADD with it", commands.div_duration_f64(redirected));
    more <= Duration::from_millis(1) && ratio >= 20.0
}

fn main() -> ExitCode {
    Bench::default().run(|_| {
        let context = PluginContext::new();
        let mut all = candidates();
        for _ in 0..ROUNDS {
            for candidate in &mut all {
                let took = turn(&context, candidate.case);
                candidate.times.push(took);
            }
        }
        ensure!(report(&mut all), "a goal is missed");
        Ok(())
    })
}
