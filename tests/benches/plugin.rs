//! What the plugin costs a pod's start: the whole process, from spawn to exit, for an ADD with 0,
//! 250 and 1,000 records present, next to `portmap` and `tuning` doing theirs. `cargo build-plugin`
//! first; then `cargo bench --bench plugin`.
//!
//! Compare the ratios of one run: times depend on the machine. The programs take turns, so that a
//! disturbance affects all of them alike.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use denizen_state::{Attachment, HostInterface, PodRef, RunDir};
use denizen_tests::bench::Bench;
use denizen_tests::binary;
use denizen_tests::node::cni::{Call, PluginContext, Variables, installed, run_here};
use serde_json::{Map, Value, json};

const ROUNDS: usize = 300;
const RECORDS: [usize; 3] = [0, 250, 1_000];

/// One program that is measured: its ADD, and the DEL that makes room for the next.
struct Candidate {
    name: String,
    program: PathBuf,
    add: Variables,
    del: Variables,
    input: PathBuf,
    /// The program is measured in every `every`-th round.
    every: usize,
    times: Vec<Duration>,
}

impl Candidate {
    fn new(
        name: &str,
        program: PathBuf,
        context: &PluginContext,
        call: &Call,
        configuration: &Value,
    ) -> Candidate {
        let (add, del) = (call.environment("ADD"), call.environment("DEL"));
        let input = context.folder().join(name);
        File::create(&input).unwrap().write_all(configuration.to_string().as_bytes()).unwrap();
        Candidate { name: name.to_owned(), program, add, del, input, every: 1, times: Vec::new() }
    }

    #[expect(clippy::disallowed_methods, reason = "this is what a bench is for")]
    fn turn(&mut self) {
        let (add, del) = (self.add.clone(), self.del.clone());
        let input = || File::open(&self.input).unwrap();
        let (to_add, to_del) = (input(), input());
        let begun = Instant::now();
        let added = run_here(&self.program, add, to_add);
        self.times.push(begun.elapsed());
        assert!(added.success() && run_here(&self.program, del, to_del).success(), "{}", self.name);
    }

    /// This percentile of the turns. A disturbance can only make a turn longer.
    fn quantile(&self, percent: usize) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times[times.len() * percent / 100]
    }
}

/// A record with as many fields as a real one.
fn record(number: usize) -> Attachment {
    let unknown = Map::new;
    // Ids look random, as a runtime's ids do: they differ in their first digits.
    let part = |salt: usize| (number + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let id = format!("{:016x}{:016x}{:016x}{:016x}", part(1), part(2), part(3), part(4));
    Attachment {
        container_id: id.clone(),
        if_name: "eth0".to_owned(),
        network: "pods".to_owned(),
        pod: Some(PodRef {
            namespace: format!("namespace-{}", number % 20),
            name: format!("web-frontend-6d4cf56db6-{number:05}"),
            uid: Some(format!("6f5d3c1e-9a3b-4c58-8b2d-{number:012x}")),
            unknown: unknown(),
        }),
        netns: Some(format!("/var/run/netns/cni-{number:08x}-9a3b-4c58-8b2d-0123456789ab")),
        host_interface: Some(HostInterface {
            name: format!("veth{number:08x}"),
            index: number as u32 + 10,
            mac: "0a:58:0a:01:02:03".to_owned(),
            unknown: unknown(),
        }),
        l3_interface: None,
        bridge: Some("cni0".to_owned()),
        ips: vec![
            ([10, 1, (number / 250) as u8, (number % 250) as u8]).into(),
            "fd00::3".parse().unwrap(),
        ],
        added_at: "2026-11-20T12:00:00Z".to_owned(),
        adopted: false,
        redirect: None,
        mac: Some("0a:58:0a:01:02:04".to_owned()),
        obsolete_redirects: Vec::new(),
        further_interfaces: Vec::new(),
        host_ports_adopted: false,
        host_ports: Vec::new(),
        unknown: unknown(),
    }
}

fn candidates(context: &PluginContext) -> Vec<Candidate> {
    let chain = context.chain(
        "1.0.0",
        json!({ "type": "bridge", "bridge": "cni0", "isGateway": true }),
        &["10.85.0.0/16"],
    );
    let call = Call::new("web-0", &context.pod);
    let result = chain.call(&context.node, &call, "ADD", &chain.plugins[0], None).unwrap();
    let mut all = Vec::new();
    for records in RECORDS {
        let run_dir = context.folder().join(format!("run-{records}"));
        RunDir::create(&run_dir)
            .unwrap()
            .update(Duration::ZERO, |state| {
                state
                    .attachments
                    .extend((0..records).map(record).map(|record| (record.id(), record)));
            })
            .unwrap();
        let ours = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "denizen", "runDir": run_dir, "prevResult": result,
        });
        all.push(Candidate::new(
            &format!("denizen, {records} records"),
            installed(),
            context,
            &call,
            &ours,
        ));
    }
    let real = |name: &str, kind: &str, mut configuration: Value| {
        configuration["cniVersion"] = json!("1.0.0");
        configuration["name"] = json!("pods");
        configuration["type"] = json!(kind);
        configuration["prevResult"] = result.clone();
        Candidate::new(name, binary::cni_plugins().join(kind), context, &call, &configuration)
    };
    all.push(real(
        "tuning, one sysctl",
        "tuning",
        json!({ "sysctl": { "net.ipv4.conf.eth0.arp_filter": "1" } }),
    ));
    let ports =
        json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    let mapping = real("portmap, one port", "portmap", json!({ "runtimeConfig": ports }));
    all.push(Candidate { every: 10, ..mapping });
    all.push(real("portmap, nothing to map", "portmap", json!({})));
    all
}

/// Prints the times next to those they are compared with; returns whether the goals are met.
fn report(all: &[Candidate]) -> bool {
    let (median, fastest) = (|of: &Candidate| of.quantile(50), |of: &Candidate| of.quantile(10));
    let ours = |records: usize| &all[RECORDS.iter().position(|known| *known == records).unwrap()];
    println!(
        "ADD, whole process, {ROUNDS} turns each        median   fastest tenth   ratio of both to 250 records"
    );
    for one in all {
        let [middle, fast] = [median(one), fastest(one)].map(|time| time.as_secs_f64() * 1e3);
        let ratios = [
            median(one).div_duration_f64(median(ours(250))),
            fastest(one).div_duration_f64(fastest(ours(250))),
        ];
        println!(
            "  {:<32} {middle:>9.3} ms {fast:>11.3} ms   {:.2}, {:.2}",
            one.name, ratios[0], ratios[1]
        );
    }
    // portmap without a port to map returns at once: it is printed, but our ADD is not compared
    // with it.
    let theirs = || all[RECORDS.len()..].iter().filter(|one| !one.name.ends_with("nothing to map"));
    let worst = |time: fn(&Candidate) -> Duration| {
        theirs().map(|one| time(ours(250)).div_duration_f64(time(one))).fold(0.0, f64::max)
    };
    let more = median(ours(1_000)).saturating_sub(median(ours(0)));
    let size = installed().metadata().unwrap().len();
    let (ratio, undisturbed) = (worst(median), worst(fastest));
    println!(
        "at 250 records, of the faster of theirs that does something: {ratio:.2} by the medians \
         (goal: at most 0.33),"
    );
    println!("    {undisturbed:.2} by the turns that nothing else on the machine disturbed");
    println!(
        "1,000 records more than none: {:.3} ms (goal: at most 2 ms)",
        more.as_secs_f64() * 1e3
    );
    println!("the binary: {size} bytes (goal: under 1,000,000)");
    ratio <= 1.0 / 3.0 && more <= Duration::from_millis(2) && size < 1_000_000
}

fn main() -> ExitCode {
    Bench::default().run(|_| {
        let context = PluginContext::new();
        let mut all = candidates(&context);
        // In the node's own thread, so that only the process is measured.
        let all = context.node.run(move || {
            for round in 0..ROUNDS {
                all.iter_mut()
                    .filter(|candidate| round % candidate.every == 0)
                    .for_each(Candidate::turn);
            }
            all
        });
        ensure!(report(&all), "a goal is missed");
        Ok(())
    })
}
