use proptest::prelude::*;

use super::super::name::{ChainId, ChainName, FORWARD, Hash, Kind, MARK_MASQ, SERVICES};
use super::super::refusal::LeftOut;
use super::super::refusals::Refusals;
use super::*;
use crate::model::{Protocol, ServiceName, ServicePortName};

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
        for target in chains.values().flatten().filter_map(|rule| rule.split_once("-j KUBE-")) {
            let name = format!("KUBE-{}", target.1);
            assert!(chains.contains_key(&name), "{name} is not there yet");
        }
        let is_bad = |rule: &String| self.bad.iter().any(|bad| rule.contains(bad));
        if self.is_full || chains.values().flatten().any(is_bad) {
            return Err(IptablesError::Failed {
                program: "iptables-restore".into(),
                said: format!("line {} failed", input.lines().count()),
            });
        }
        self.tables.insert(table.to_owned(), chains);
        let nat = self.tables.get("nat");
        self.history.extend(nat.and_then(|nat| nat.get("KUBE-SERVICES")).cloned());
        Ok(())
    }

    fn lines(&mut self, table: Table, chain: &str) -> Result<Lines, IptablesError> {
        let table = self.tables.get(&table.to_string());
        Ok(table.and_then(|table| table.get(chain).cloned()).unwrap_or_default())
    }

    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn has_time(&mut self) -> bool {
        self.writes < self.time
    }
}

fn chain(kind: Kind, service: usize) -> ChainName {
    let port = ServicePortName {
        service: ServiceName::new("default", &format!("s{service}")),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    ChainName::Of(kind, Hash::of(&port, None))
}

/// So many services of one endpoint; those that `stick` remember their clients.
fn wanted(services: usize, stick: impl Fn(usize) -> bool) -> BTreeMap<ChainId, Option<Lines>> {
    let mut all = BTreeMap::from([((Table::Nat, MARK_MASQ), Some(vec!["-j MARK".to_owned()]))]);
    let mut keys = Lines::new();
    for n in 0..services {
        let (service, endpoint) = (chain(Kind::Service, n), chain(Kind::Endpoint, n));
        let (recall, remember) = match stick(n) {
            true => ("-m recent --rcheck ", "-m recent --set "),
            false => ("", ""),
        };
        let choose = format!("-m comment --comment \"s{n}. -> -m x\" {recall}-j {endpoint}");
        let translate = format!(
            "-m comment --comment \"s{n}.\" {remember}-j DNAT --to-destination 10.0.0.{n}:80"
        );
        keys.push(format!("-d 10.1.0.{n}/32 -m comment --comment \"s{n}.\" -j {service}"));
        all.insert((Table::Nat, service), Some(vec![choose]));
        all.insert((Table::Nat, endpoint), Some(vec![translate]));
    }
    all.insert((Table::Nat, SERVICES), Some(keys));
    all
}

fn write(
    kernel: &mut Fake,
    wanted: &BTreeMap<ChainId, Option<Lines>>,
) -> Result<Vec<Refusal>, IptablesError> {
    let edit = Edit::of(wanted.clone(), &mut Refusals::default());
    let mut seen = Observed::default();
    for (name, lines) in kernel.nat() {
        let rules: String = lines.iter().map(|line| format!("-A {name} {line}\n")).collect();
        seen.read(Table::Nat, &format!(":{name} - [0:0]\n{rules}"));
    }
    write_in_parts(kernel, edit, &seen)
}

fn chains_of(refusals: &[Refusal]) -> BTreeSet<String> {
    refusals.iter().map(|refusal| refusal.chain.clone()).collect()
}

#[test]
fn one_chain_of_many_is_found() {
    let wanted = wanted(600, |_| false);
    let mut kernel = Fake::new(&["10.0.0.77:"]);
    let refusals = write(&mut kernel, &wanted).unwrap();
    let bad = chain(Kind::Endpoint, 77).to_string();
    assert_eq!(chains_of(&refusals), BTreeSet::from([bad.clone()]));
    let said = &refusals[0].words();
    assert!(said.contains("s77.") && said.contains("stays empty"), "{said}");
    for ((_, name), lines) in &wanted {
        let name = name.to_string();
        let expected = if name == bad { 0 } else { lines.as_ref().unwrap().len() };
        assert_eq!(kernel.chain(&name), expected, "{name}");
    }
    assert!(kernel.writes < 40, "{}", kernel.writes);
}

#[test]
fn what_all_have_refused_that_use_it_is_soon_found() {
    let wanted = wanted(1_000, |n| n % 3 == 0);
    let mut kernel = Fake::new(&["-m recent"]);
    let refusals = write(&mut kernel, &wanted).unwrap();
    let sticky = (0..1_000).step_by(3);
    let kinds = [Kind::Service, Kind::Endpoint];
    let expected = sticky.flat_map(|n| kinds.map(|kind| chain(kind, n).to_string()));
    assert_eq!(chains_of(&refusals), expected.collect());
    assert!(kernel.writes < 20, "{}", kernel.writes);
}

#[test]
fn a_shared_chain_never_lacks_what_it_has_and_shall_have() {
    let few = wanted(20, |_| false);
    let mut kernel = Fake::new(&[]);
    assert_eq!(write(&mut kernel, &few).unwrap(), []);
    kernel.bad = vec!["-d 10.1.0.33/32 ".into()];
    kernel.history.clear();
    let refusals = write(&mut kernel, &wanted(60, |_| false)).unwrap();
    assert_eq!(refusals.len(), 1);
    assert!(matches!(&refusals[0].left_out, LeftOut::Line(line) if line.contains("s33.")));
    let (_, keys) = few.iter().find(|((_, name), _)| *name == SERVICES).unwrap();
    for lines in &kernel.history {
        assert!(keys.iter().flatten().all(|key| lines.contains(key)), "{lines:?}");
    }
    assert_eq!(kernel.chain("KUBE-SERVICES"), 59);
}

#[test]
fn a_chain_that_was_there_stays_as_it_was() {
    let before = wanted(3, |_| false);
    let mut kernel = Fake::new(&[]);
    write(&mut kernel, &before).unwrap();
    kernel.bad = vec!["-m recent".into()];
    let refusals = write(&mut kernel, &wanted(3, |n| n == 1)).unwrap();
    assert_eq!(refusals.len(), 2);
    assert!(refusals.iter().all(|it| it.words().contains("stays as it was")));
    for ((_, name), lines) in before {
        assert_eq!(kernel.nat()[&name.to_string()], lines.unwrap());
    }
}

#[test]
fn without_time_everything_is_tried_all_the_same() {
    let mut kernel = Fake::new(&["10.0.0.3:", "10.0.0.9:"]);
    kernel.time = 0;
    let refusals = write(&mut kernel, &wanted(40, |_| false)).unwrap();
    assert_eq!(refusals.len(), 40, "the endpoints, together");
    assert!(refusals[5].words().contains("together with others"), "{}", refusals[5].words());
    assert_eq!(kernel.chain("KUBE-SERVICES"), 40);
    assert_eq!(kernel.chain(&chain(Kind::Service, 3).to_string()), 1);
}

#[test]
fn a_table_that_takes_nothing_is_no_rules_fault() {
    let mut kernel = Fake { is_full: true, ..Fake::new(&[]) };
    let error = write(&mut kernel, &wanted(3, |_| false)).unwrap_err();
    assert!(error.to_string().contains("a change of nothing"), "{error}");
    assert_eq!(kernel.writes, 1);
}

#[test]
fn what_every_service_needs_is_never_left_out() {
    let mut kernel = Fake::new(&["-j MARK"]);
    let error = write(&mut kernel, &wanted(3, |_| false)).unwrap_err();
    assert!(error.to_string().contains("nat: KUBE-MARK-MASQ"), "{error}");
    let wanted = BTreeMap::from([((Table::Filter, FORWARD), Some(vec!["-j ACCEPT".to_owned()]))]);
    let error = write(&mut Fake::new(&["ACCEPT"]), &wanted).unwrap_err();
    assert!(error.to_string().contains("filter: KUBE-FORWARD"), "{error}");
}

#[test]
fn a_shape_is_a_rule_without_its_values() {
    let one = r#"-d 10.0.0.1/32 -p tcp -m comment --comment "a/b: -m \"x\" -j y" -m tcp --dport 80 -j KUBE-SVC-A"#;
    let same = r#"-d 10.9.0.1/32 -p tcp -m comment --comment "c" -m tcp --dport 443 -j KUBE-SVC-B"#;
    assert_eq!(shape(one), shape(same));
    for other in [
        r#"-d 10.0.0.1/32 -p udp -m comment --comment "c" -m udp --dport 80 -j KUBE-SVC-A"#,
        r#"-d 10.0.0.1/32 -p tcp -m comment --comment "c" -m tcp --dport 80 -j REJECT"#,
    ] {
        assert_ne!(shape(one), shape(other));
    }
}

proptest! {
    /// Whatever is refused, it is left out and nothing else; but where all that was tried of many
    /// was refused.
    #[test]
    fn exactly_what_is_refused_is_left_out(
        sticky in proptest::collection::btree_set(0..60_usize, 0..60),
        bad in proptest::collection::btree_set(0..60_usize, 0..7),
        keys in proptest::collection::btree_set(0..60_usize, 0..7),
    ) {
        let mut kernel = Fake::new(&[]);
        kernel.bad.extend(bad.iter().map(|n| format!("10.0.0.{n}:")));
        kernel.bad.extend(keys.iter().map(|n| format!("-d 10.1.0.{n}/32 ")));
        let wanted = wanted(60, |n| sticky.contains(&n));
        let refusals = write(&mut kernel, &wanted).unwrap();
        let together = refusals.iter().any(|it| it.words().contains("together"));
        prop_assert!(together || refusals.len() == bad.len() + keys.len(), "{:?}", refusals);
        let chains = chains_of(&refusals);
        for ((_, name), lines) in wanted {
            let (name, lines) = (name.to_string(), lines.unwrap());
            let left_out = if chains.contains(&name) { lines.len() } else { 0 };
            let of_shared = refusals.iter().filter(|it| matches!(it.left_out, LeftOut::Line(_))).count();
            let left_out = if name == "KUBE-SERVICES" { of_shared } else { left_out };
            prop_assert_eq!(kernel.chain(&name), lines.len() - left_out, "{}", name);
        }
        prop_assert_eq!(kernel.nat().len(), 2 + 120);
    }
}
