//! Refuses packets to announced addresses that no service takes, in nf_tables, whichever backend
//! serves services.
//!
//! Routers send this node everything for an announced address. A packet that no rule translates
//! would go back to them by the default route, and circulate until its TTL ends. A route cannot
//! refuse it: that would also refuse the node's own connections, before their destination is
//! translated.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use denizen_model::{Family, family_of};
use denizen_nft::{
    BaseChain, Chain, ChainKind, Content, DataType, Element, Field, Hook, Keeper, Kernel, Key,
    NftError, Reject, Rule, Schema, Set, SetId, Statement, Value,
};

/// The name of its table, in `ip` and in `ip6`.
pub const TABLE: &str = "denizen-announced";

/// `filter`: destinations are translated before (`dstnat`, -100; for what the node sends, too).
const PRIORITY: i32 = 0;

/// IPPROTO_TCP.
const TCP: u8 = 6;

const ANNOUNCED: SetId = SetId(0);

/// The tables of both versions.
#[derive(Debug)]
pub struct Unserved {
    kernel: Kernel,
    tables: [(Family, Keeper); 2],
    announced: BTreeSet<IpAddr>,
}

impl Unserved {
    /// Nothing is programmed yet.
    pub fn new(kernel: Kernel) -> Self {
        let tables = Family::BOTH.map(|version| (version, Keeper::new(schema(version))));
        Self { kernel, tables, announced: BTreeSet::new() }
    }

    /// The portid by which notifications name our own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Another program may have changed the tables.
    pub fn note_foreign_change(&mut self) {
        self.tables.iter_mut().for_each(|(_, keeper)| keeper.mark_unknown());
    }

    /// Refuses what no service takes at these addresses, and nothing else.
    ///
    /// # Errors
    /// [`NftError`]; the next call starts from what it finds.
    pub fn sync(&mut self, announced: BTreeSet<IpAddr>) -> Result<(), NftError> {
        let before = std::mem::replace(&mut self.announced, announced);
        let after = &self.announced;
        for (version, keeper) in &mut self.tables {
            let of_table = |addresses| elements(*version, addresses).collect();
            let (gone, new) = (before.difference(after), after.difference(&before));
            keeper.note(|delta| delta.extend(of_table(gone), of_table(new)));
        }
        let mut contents = Family::BOTH.map(|version| AnnouncedTable { version, addresses: after });
        let keepers = self.tables.iter_mut().map(|(_, keeper)| keeper);
        let mut tables: Vec<_> = keepers.zip(&mut contents).collect();
        Keeper::sync(&mut self.kernel, &mut tables).map(drop)
    }

    /// Removes the tables. Returns how many there were.
    pub fn remove(kernel: &mut Kernel) -> Result<usize, NftError> {
        let mut removed = 0;
        for version in Family::BOTH {
            removed += usize::from(Keeper::remove_table(kernel, &schema(version), &[])?);
        }
        Ok(removed)
    }
}

/// What the table of one version holds.
struct AnnouncedTable<'a> {
    version: Family,
    addresses: &'a BTreeSet<IpAddr>,
}

impl Content for AnnouncedTable<'_> {
    fn chains(&self) -> Vec<Chain> {
        chains(self.version).into()
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        elements(self.version, self.addresses.iter())
    }
}

/// The table of one version.
fn schema(version: Family) -> Schema {
    Schema {
        family: version.into(),
        name: TABLE,
        comment: "Denizen: what no service takes at announced addresses is refused",
        sets: vec![announced(version)],
    }
}

fn announced(version: Family) -> Set {
    Set {
        id: ANNOUNCED,
        name: "announced",
        comment: "addresses of services that routers send here",
        key: vec![Field::Destination(version)],
        is_ranged: false,
        data: DataType::None,
        max_dynamic_elements: None,
    }
}

/// Its chains: for what is routed on, and for what this node sends out. Packets for this node
/// itself are left alone: a node-local DNS cache may listen at a cluster IP.
fn chains(version: Family) -> [Chain; 2] {
    let chain = |name: &str, hook, why, matches: Option<Statement>| Chain {
        name: name.into(),
        base: Some(BaseChain { kind: ChainKind::Filter, hook, priority: PRIORITY }),
        why,
        rules: refused(version, matches).into(),
    };
    let leaves = Statement::NotEquals(Field::OutputInterface, Key::EMPTY.interface("lo"));
    [
        chain("forward", Hook::Forward, "what is routed to another node", None),
        chain("output", Hook::Output, "what this node sends", Some(leaves)),
    ]
}

/// TCP gets a reset, not an ICMP error: if a packet would leave by the interface that it came in
/// by, the kernel sends an ICMP redirect first, and its rate limit then suppresses the ICMP error.
fn refused(version: Family, matches: Option<Statement>) -> [Rule; 2] {
    let is_tcp = Statement::Equals(Field::Protocol, Key::EMPTY.byte(TCP));
    let rule = |is_tcp: Option<Statement>, answer| {
        let is_announced = Statement::In(announced(version).lookup());
        let matches = matches.iter().cloned().chain(is_tcp).chain([is_announced]);
        let statements = matches.chain([Statement::Counter, Statement::Reject(answer)]).collect();
        Rule { statements, why: "no service takes it, and routers would send it back here" }
    };
    [rule(Some(is_tcp), Reject::TcpReset), rule(None, Reject::PortUnreachable)]
}

fn elements<'a>(
    version: Family,
    addresses: impl Iterator<Item = &'a IpAddr>,
) -> impl Iterator<Item = Element> {
    addresses.filter(move |ip| family_of(**ip) == version).map(|ip| Element {
        set: ANNOUNCED,
        key: Key::EMPTY.address(*ip),
        value: Value::Member,
        comment: None,
    })
}
