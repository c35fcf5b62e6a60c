use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::fixture::SCHEMA;
use super::super::rejected_rule::Unwritten;
use super::*;

/// ip_tables as `iptables-legacy-restore --noflush` shows it: a table changes whole or not at all,
/// and what is refused has no name.
#[derive(Default)]
struct Fake {
    tables: BTreeMap<String, BTreeMap<String, Lines>>,
    /// Rules that contain one of these are refused.
    bad: Vec<String>,
    /// Every write is refused.
    is_full: bool,
    /// How many more writes there is time for, until nothing is looked at more closely.
    time: usize,
    writes: usize,
    /// What the shared chain had after each write.
    history: Vec<Lines>,
}

impl Fake {
    fn new(bad: &[&str]) -> Self {
        Self {
            bad: bad.iter().map(|bad| (*bad).to_owned()).collect(),
            time: usize::MAX,
            ..Self::default()
        }
    }

    fn nat(&self) -> BTreeMap<String, Lines> {
        self.tables.get("nat").cloned().unwrap_or_default()
    }

    fn chain(&self, name: &str) -> usize {
        self.nat()[name].len()
    }
}

impl Kernel for Fake {
    fn write(&mut self, input: &str) -> Result<(), IptablesError> {
        self.writes += 1;
        let mut lines = input.lines();
        let table = lines.next().unwrap().strip_prefix('*').unwrap();
        let mut chains = self.tables.get(table).cloned().unwrap_or_default();
        for line in lines {
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            match what {
                "-A" => chains.get_mut(chain).unwrap().push(rule.to_owned()),
                "-I" => chains.entry(chain.to_owned()).or_default().insert(0, rule.to_owned()),
                "-X" => drop(chains.remove(chain)),
                "COMMIT" => {}
                _ => drop(chains.insert(what.strip_prefix(':').unwrap().to_owned(), Lines::new())),
            }
        }
        for target in chains.values().flatten().filter_map(|rule| rule.split_once("-j OWN-")) {
            let name = format!("OWN-{}", target.1);
            assert!(chains.contains_key(&name), "{name} is not there yet");
        }
        let is_bad = |rule: &String| self.bad.iter().any(|bad| rule.contains(bad));
        if self.is_full || chains.values().flatten().any(is_bad) {
            return Err(IptablesError::Failed {
                program: "iptables-restore".into(),
                message: format!("line {} failed", input.lines().count()),
            });
        }
        self.tables.insert(table.to_owned(), chains);
        let nat = self.tables.get("nat");
        self.history.extend(nat.and_then(|nat| nat.get("OWN-ALL")).cloned());
        Ok(())
    }

    fn saved(&mut self, table: Table) -> Result<String, IptablesError> {
        let chains = self.tables.get(table.as_str()).cloned().unwrap_or_default();
        let declared: String = chains.keys().map(|name| format!(":{name} - [0:0]\n")).collect();
        let rules = chains
            .iter()
            .flat_map(|(name, lines)| lines.iter().map(move |line| format!("-A {name} {line}\n")));
        Ok(format!("{declared}{}", rules.collect::<String>()))
    }

    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn has_time(&mut self) -> bool {
        self.writes < self.time
    }
}

/// The chains that choose an endpoint of service `n`, and that lead to it.
fn service(n: usize) -> String {
    format!("OWN-2-s{n}")
}

fn endpoint(n: usize) -> String {
    format!("OWN-1-s{n}")
}

/// So many services of one endpoint; those that `stick` remember their clients.
fn wanted(services: usize, stick: impl Fn(usize) -> bool) -> BTreeMap<String, Lines> {
    let mut all = BTreeMap::from([("OWN-0".to_owned(), vec!["-j MARK".to_owned()])]);
    let mut keys = Lines::new();
    for n in 0..services {
        let (recall, remember) = match stick(n) {
            true => ("-m recent --rcheck ", "-m recent --set "),
            false => ("", ""),
        };
        let choose = format!("-m comment --comment \"s{n}. -> -m x\" {recall}-j {}", endpoint(n));
        let translate = format!(
            "-m comment --comment \"s{n}.\" {remember}-j DNAT --to-destination 10.0.0.{n}:80"
        );
        keys.push(format!("-d 10.1.0.{n}/32 -m comment --comment \"s{n}.\" -j {}", service(n)));
        all.insert(service(n), vec![choose]);
        all.insert(endpoint(n), vec![translate]);
    }
    all.insert("OWN-ALL".to_owned(), keys);
    all
}

fn write(
    kernel: &mut Fake,
    wanted: &BTreeMap<String, Lines>,
) -> Result<Vec<RejectedRule>, IptablesError> {
    let delta = TableDelta { write: wanted.clone(), ..TableDelta::default() };
    super::write(kernel, &SCHEMA, Table::Nat, delta)
}

fn chains_of(rejected: &[RejectedRule]) -> BTreeSet<String> {
    rejected.iter().map(|rejected| rejected.chain.1.clone()).collect()
}

#[test]
fn one_chain_of_many_is_found() {
    let wanted = wanted(600, |_| false);
    let mut kernel = Fake::new(&["10.0.0.77:"]);
    let rejected = write(&mut kernel, &wanted).unwrap();
    let bad = endpoint(77);
    assert_eq!(chains_of(&rejected), BTreeSet::from([bad.clone()]));
    let message = &rejected[0].text();
    assert!(
        message.contains("s77.") && message.contains("keeps the rules that it had"),
        "{message}"
    );
    for (name, lines) in &wanted {
        let expected = if *name == bad { 0 } else { lines.len() };
        assert_eq!(kernel.chain(name), expected, "{name}");
    }
    assert!(kernel.writes < 40, "{}", kernel.writes);
}

/// As when the kernel rejects an extension that was not probed.
#[test]
fn many_that_are_rejected_alike_are_found() {
    let wanted = wanted(100, |n| n % 3 == 0);
    let mut kernel = Fake::new(&["-m recent"]);
    let rejected = write(&mut kernel, &wanted).unwrap();
    let sticky = (0..100).step_by(3);
    assert_eq!(chains_of(&rejected), sticky.flat_map(|n| [service(n), endpoint(n)]).collect());
}

#[test]
fn a_shared_chain_never_lacks_what_it_has_and_shall_have() {
    let few = wanted(20, |_| false);
    let mut kernel = Fake::new(&[]);
    assert_eq!(write(&mut kernel, &few).unwrap(), []);
    kernel.bad = vec!["-d 10.1.0.33/32 ".into()];
    kernel.history.clear();
    let rejected = write(&mut kernel, &wanted(60, |_| false)).unwrap();
    assert_eq!(rejected.len(), 1);
    assert!(matches!(&rejected[0].unwritten, Unwritten::Rule(line) if line.contains("s33.")));
    let keys = &few["OWN-ALL"];
    for lines in &kernel.history {
        assert!(keys.iter().all(|key| lines.contains(key)), "{lines:?}");
    }
    assert_eq!(kernel.chain("OWN-ALL"), 59);
}

#[test]
fn a_chain_that_was_there_stays_as_it_was() {
    let before = wanted(3, |_| false);
    let mut kernel = Fake::new(&[]);
    write(&mut kernel, &before).unwrap();
    kernel.bad = vec!["-m recent".into()];
    let rejected = write(&mut kernel, &wanted(3, |n| n == 1)).unwrap();
    assert_eq!(rejected.len(), 2);
    assert!(rejected.iter().all(|it| it.text().contains("keeps the rules that it had")));
    for (name, lines) in before {
        assert_eq!(kernel.nat()[&name], lines);
    }
}

#[test]
fn without_time_everything_is_tried_all_the_same() {
    let mut kernel = Fake::new(&["10.0.0.3:", "10.0.0.9:"]);
    kernel.time = 0;
    let rejected = write(&mut kernel, &wanted(40, |_| false)).unwrap();
    assert_eq!(rejected.len(), 40, "the endpoints, together");
    assert!(rejected[5].text().contains("together with others"), "{}", rejected[5].text());
    assert_eq!(kernel.chain("OWN-ALL"), 40);
    assert_eq!(kernel.chain(&service(3)), 1);
}

#[test]
fn a_table_that_accepts_nothing_is_no_rules_fault() {
    let mut kernel = Fake { is_full: true, ..Fake::new(&[]) };
    let error = write(&mut kernel, &wanted(3, |_| false)).unwrap_err();
    assert!(error.to_string().contains("a change of nothing"), "{error}");
    assert_eq!(kernel.writes, 2, "the transaction, and a change of nothing");
}

#[test]
fn what_every_service_needs_is_never_left_out() {
    let mut kernel = Fake::new(&["-j MARK"]);
    let error = write(&mut kernel, &wanted(3, |_| false)).unwrap_err();
    assert!(error.to_string().contains("nat: OWN-0"), "{error}");
}

proptest! {
    // Each writes some hundred rules many times over.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is rejected, it is left out and nothing else.
    #[test]
    fn exactly_what_is_rejected_is_left_out(
        sticky in proptest::collection::btree_set(0..60_usize, 0..60),
        bad in proptest::collection::btree_set(0..60_usize, 0..7),
        keys in proptest::collection::btree_set(0..60_usize, 0..7),
    ) {
        let mut kernel = Fake::new(&[]);
        kernel.bad.extend(bad.iter().map(|n| format!("10.0.0.{n}:")));
        kernel.bad.extend(keys.iter().map(|n| format!("-d 10.1.0.{n}/32 ")));
        let wanted = wanted(60, |n| sticky.contains(&n));
        let rejected = write(&mut kernel, &wanted).unwrap();
        prop_assert_eq!(rejected.len(), bad.len() + keys.len(), "{:?}", rejected);
        let chains = chains_of(&rejected);
        for (name, lines) in wanted {
            let left_out = if chains.contains(&name) { lines.len() } else { 0 };
            let is_rule = |it: &&RejectedRule| matches!(it.unwritten, Unwritten::Rule(_));
            let of_shared = rejected.iter().filter(is_rule).count();
            let left_out = if name == "OWN-ALL" { of_shared } else { left_out };
            prop_assert_eq!(kernel.chain(&name), lines.len() - left_out, "{}", name);
        }
        prop_assert_eq!(kernel.nat().len(), 2 + 120);
    }
}
