//! Executes the iptables programs: the kernel interface that they use is private to them.

use denizen_packet::Family;
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use clap::ValueEnum;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tracing::{debug, trace_span};

use super::error::IptablesError;
use super::probe::{Extension, MissingExtensions, probe};
use super::save::Observed;
use super::{Schema, Table};
use denizen_netlink::Capability;

/// The variant of iptables, and so the kernel facility that holds the tables. A node may have both;
/// its rules should be in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// The kernel's ip_tables.
    Legacy,
    /// nf_tables', through iptables-nft.
    Nft,
}

/// The programs of one variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Programs {
    /// Which kernel interface the programs write to.
    pub variant: Variant,
    infix: &'static str,
}

impl Programs {
    /// The programs of a variant, if they are installed.
    pub fn of(variant: Variant) -> Option<Self> {
        let infix = match variant {
            Variant::Legacy => "-legacy",
            Variant::Nft => "-nft",
        };
        let named = Self { variant, infix };
        if named.version().is_ok() {
            return Some(named);
        }
        // If only one variant is installed, its programs may have the plain name.
        let plain = Self { variant, infix: "" };
        let is_nft = plain.version().ok()?.contains("nf_tables");
        (is_nft == (variant == Variant::Nft)).then_some(plain)
    }

    /// The programs of the variant that the operator named.
    ///
    /// # Errors
    /// When they are not installed.
    pub fn installed(variant: Variant) -> Result<Self, IptablesError> {
        Self::of(variant).ok_or_else(|| IptablesError::Run {
            program: match variant {
                Variant::Legacy => "iptables-legacy-save".to_owned(),
                Variant::Nft => "iptables-nft-save".to_owned(),
            },
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// The variant that this node uses, found out as kubernetes-sigs/iptables-wrappers does: the
    /// variant in which kubelet made its chains, which it makes as a hint for this; else the
    /// variant that holds more rules; else nft.
    ///
    /// # Errors
    /// When no iptables is installed, or a program fails, so that the variant cannot be found out.
    pub fn find() -> Result<Self, IptablesError> {
        let (nft, legacy) = (Self::of(Variant::Nft), Self::of(Variant::Legacy));
        let (nft, legacy) = match (nft, legacy) {
            (Some(nft), Some(legacy)) => (nft, legacy),
            (Some(only), None) | (None, Some(only)) => return Ok(only),
            (None, None) => {
                let source = io::Error::from(io::ErrorKind::NotFound);
                let program = "iptables-save".to_owned();
                return Err(IptablesError::Run { program, source });
            }
        };
        for programs in [nft, legacy] {
            if programs.is_hinted() {
                return Ok(programs);
            }
        }
        let rules = legacy.count()?;
        // A kernel may be without nf_tables.
        let more = nft.count().map_or_else(
            |error| if rules > 0 { Ok(true) } else { Err(error) },
            |of_nft| Ok(rules > of_nft),
        )?;
        Ok(if more { legacy } else { nft })
    }

    fn program(&self, family: Family, what: &str) -> String {
        let name = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{name}{}{what}", self.infix)
    }

    fn version(&self) -> Result<String, IptablesError> {
        let program = self.program(Family::V4, "-save");
        let output = execute(&program, &["--version"], None)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn is_hinted(&self) -> bool {
        let has = |family, name| self.has_chain(family, "mangle", name).unwrap_or(false);
        let hinted =
            |family| has(family, "KUBE-IPTABLES-HINT") || has(family, "KUBE-KUBELET-CANARY");
        Family::BOTH.into_iter().any(hinted)
    }

    /// The tables to read. Reading a missing legacy table creates it, and every packet then passes
    /// it. Reading needs a raw socket, and so CAP_NET_RAW.
    fn tables(&self, family: Family) -> Tables {
        match self.variant {
            Variant::Legacy => Tables::These(legacy_tables(family)),
            Variant::Nft => Tables::All,
        }
    }

    /// Whether there is a chain of that name.
    pub fn has_chain(
        &self,
        family: Family,
        table: &str,
        name: &str,
    ) -> Result<bool, IptablesError> {
        if !self.tables(family).has(table) {
            return Ok(false);
        }
        let output = execute(&self.program(family, "-save"), &["-t", table], None)?;
        Ok(String::from_utf8_lossy(&output.stdout).contains(&format!(":{name} ")))
    }

    fn count(&self) -> Result<usize, IptablesError> {
        let mut rules = 0;
        for family in Family::BOTH {
            if self.tables(family).are_none() {
                continue;
            }
            let output = execute(&self.program(family, "-save"), &[], None)?;
            rules += output
                .stdout
                .split(|byte| *byte == b'\n')
                .filter(|line| line.starts_with(b"-"))
                .count();
        }
        Ok(rules)
    }

    /// What the kernel holds in these tables, limited to what is the client's according to
    /// `schema`.
    pub fn save(
        &self,
        family: Family,
        tables: &[Table],
        schema: &'static Schema,
    ) -> Result<Observed, IptablesError> {
        let _span = trace_span!("save", %family).entered();
        let mut seen = Observed::new(schema);
        let there = self.tables(family);
        for table in tables {
            if !there.has(table.as_str()) {
                continue;
            }
            match self.saved(family, *table) {
                Ok(text) => seen.read(*table, &text),
                // A write to this table fails too, and its error says why.
                Err(_) if *table == Table::Security => {}
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    }

    /// What `iptables-save` prints of one table.
    pub fn saved(&self, family: Family, table: Table) -> Result<String, IptablesError> {
        let program = self.program(family, "-save");
        let output = execute(&program, &["-t", table.as_str()], None)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Parses this input and asks the kernel for each extension in it, but changes nothing. Returns
    /// what the program wrote to its standard error.
    pub fn test(&self, family: Family, input: &str) -> Result<String, IptablesError> {
        let program = self.program(family, "-restore");
        let output = execute(&program, &["-w", "5", "--noflush", "--test"], Some(input))?;
        Ok(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))
    }

    /// Which of these extensions this host lacks.
    ///
    /// # Errors
    /// [`IptablesError`] if it cannot be found out.
    pub fn missing(
        &self,
        family: Family,
        extensions: &[Extension],
    ) -> Result<MissingExtensions, IptablesError> {
        probe(extensions, |input| self.test(family, input))
    }

    /// Changes rules; a table changes whole or not at all.
    ///
    /// # Errors
    /// [`IptablesError::Failed`] with the program's own words.
    pub fn restore(&self, family: Family, input: &str) -> Result<(), IptablesError> {
        let _span = trace_span!("restore", %family, bytes = input.len()).entered();
        let program = self.program(family, "-restore");
        // `-w 5`: waits at most 5 seconds for the lock that every legacy program takes.
        execute(&program, &["-w", "5", "--noflush"], Some(input))?;
        debug!(%family, bytes = input.len(), "rules written");
        Ok(())
    }
}

/// The tables that may be read without making them.
enum Tables {
    /// Every table.
    All,
    /// The tables with these names.
    These(Vec<String>),
}

impl Tables {
    fn has(&self, table: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.iter().any(|name| name == table),
        }
    }

    fn are_none(&self) -> bool {
        matches!(self, Self::These(names) if names.is_empty())
    }
}

/// The tables of legacy iptables that are there.
pub fn legacy_tables(family: Family) -> Vec<String> {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "iptables' programs do not tell without making it so"
    )]
    let names = std::fs::read_to_string(names).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

fn execute(
    program: &str,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<Output, IptablesError> {
    let run = || -> io::Result<Output> {
        #[expect(
            clippy::disallowed_methods,
            reason = "iptables has no interface but its programs that the next version would keep"
        )]
        let mut command = Command::new(program);
        // Root's PATH may lack the administrator's programs in a container.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        // The program reads all of its input before it writes more than fits into a pipe.
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            match stdin.write_all(input.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                Err(_) | Ok(()) => {}
            }
        }
        child.wait_with_output()
    };
    let output =
        run().map_err(|source| IptablesError::Run { program: program.to_owned(), source })?;
    if output.status.success() {
        return Ok(output);
    }
    let mut message = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    if !Capability::NetRaw.is_held() {
        message.push_str("; iptables' programs use raw sockets: CAP_NET_RAW is needed too");
    }
    Err(IptablesError::Failed {
        program: program.to_owned(),
        message: format!("{message} ({})", output.status),
    })
}

/// Whether this kernel has the family at all. Without IPv6 (`ipv6.disable=1`) the legacy programs
/// fail in every case, and there are no packets for their rules.
pub fn has_family(family: Family) -> bool {
    let domain = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let socket = socket(domain, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    !matches!(socket, Err(Errno::EAFNOSUPPORT))
}
