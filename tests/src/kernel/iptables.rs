//! The iptables rules that the kernel holds, read and written through iptables' own programs.

use anyhow::Result;

use crate::node::netns::Netns;
use crate::oracle::flows::table::Backend;

/// Which of the kernel's facilities has the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// ip_tables.
    Legacy,
    /// nf_tables.
    Nft,
}

/// The programs of both families.
const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

impl Variant {
    pub const BOTH: [Self; 2] = [Self::Legacy, Self::Nft];

    fn program(self, family: &str, what: &str) -> String {
        match self {
            Self::Legacy => format!("{family}-legacy{what}"),
            Self::Nft => format!("{family}-nft{what}"),
        }
    }

    /// An agent's flags for this variant.
    pub fn flags(self) -> Vec<String> {
        match self {
            Self::Legacy => Backend::IptablesLegacy.flags(),
            Self::Nft => Backend::IptablesNft.flags(),
        }
    }

    /// Every rule of both families, chain by chain, in their order there, without counters.
    pub fn dump(self, node: &Netns) -> Result<String> {
        self.saved(node, &[])
    }

    /// The same with counters before each rule.
    pub fn counted(self, node: &Netns) -> Result<String> {
        self.saved(node, &["-c"])
    }

    fn saved(self, node: &Netns, arguments: &[&str]) -> Result<String> {
        let mut all = Vec::new();
        for family in FAMILIES {
            let mut table = String::new();
            let program = self.program(family, "-save");
            // After it has read the rules, the program looks up the sets that they name, which may
            // be gone by then: try again.
            let text =
                node.output(&program, arguments).or_else(|_| node.output(&program, arguments))?;
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                if let Some(name) = line.strip_prefix('*') {
                    table = format!("{family} {name}");
                }
                // The order of chains does not matter: a chain that was made anew stands elsewhere.
                let line =
                    line.split(" [").next().filter(|_| line.starts_with(':')).unwrap_or(line);
                let chain =
                    line.split(' ').find(|word| word.starts_with("KUBE-")).unwrap_or_default();
                all.push((table.clone(), chain.to_owned(), line.to_owned()));
            }
        }
        all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let lines = all.into_iter().map(|(table, _, line)| format!("{table}: {line}\n"));
        Ok(lines.collect())
    }

    /// Feeds `input` to the `-restore --noflush` of `family`, `iptables` or `ip6tables`.
    pub fn restore(self, node: &Netns, family: &str, input: &str) -> Result<()> {
        node.feed(&self.program(family, "-restore"), &["-w", "--noflush"], input)
    }

    /// Replaces whole tables of `family`, foreign rules included.
    pub fn replace(self, node: &Netns, family: &str, input: &str) -> Result<()> {
        node.feed(&self.program(family, "-restore"), &["-w"], input)
    }

    /// Runs one command of `iptables`, its words separated by one space; an error if it fails.
    pub fn run(self, node: &Netns, command: &str) -> Result<()> {
        let arguments: Vec<&str> = ["-w"].into_iter().chain(command.split(' ')).collect();
        node.output(&self.program("iptables", ""), &arguments).map(drop)
    }
}

/// The elements of all ipsets.
pub fn sets(node: &Netns) -> Result<String> {
    let text = node.output("ipset", &["save"])?;
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with("add ")).collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

/// Makes one test per variant. The tested function takes the label of the test's namespaces, the
/// variant, and whatever else is given here.
#[macro_export]
macro_rules! for_each_variant {
    ($test:ident, $label:literal $(, $more:expr)*) => {
        $crate::for_each_variant!($test = $test, $label $(, $more)*);
    };
    ($test:ident = $play:ident, $label:literal $(, $more:expr)*) => {
        mod $test {
            use $crate::kernel::iptables::Variant;

            #[test]
            fn legacy() -> anyhow::Result<()> {
                super::$play(concat!($label, "-l"), Variant::Legacy $(, $more)*)
            }

            #[test]
            fn nft() -> anyhow::Result<()> {
                super::$play(concat!($label, "-n"), Variant::Nft $(, $more)*)
            }
        }
    };
}
