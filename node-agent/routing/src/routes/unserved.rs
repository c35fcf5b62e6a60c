//! Refuses packets to announced addresses that no service takes, in nf_tables, whichever backend
//! serves services.
//!
//! Routers send this node everything for an announced address. What no rule translates would go
//! back to them by the default route, and around until its TTL ends. Not by a route: that would
//! refuse the node's own connections before their destination is translated.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use denizen_model::{Family, family_of};
use denizen_nft::{
    BaseChain, Chain, DataType, Delta, Element, Field, Hook, Kernel, Key, Kind, NftError, Reject,
    Rule, Schema, Set, SetId, Statement, Value,
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
    /// What is in the sets; `None` before the first look, and when another program may have changed
    /// the tables.
    known: Option<BTreeSet<IpAddr>>,
}

impl Unserved {
    /// Nothing is programmed yet.
    pub fn new(kernel: Kernel) -> Self {
        Self { kernel, known: None }
    }

    /// The portid by which notifications name our own changes.
    pub fn portid(&self) -> u32 {
        self.kernel.portid()
    }

    /// Another program may have changed the tables.
    pub fn disturbed(&mut self) {
        self.known = None;
    }

    /// Refuses what no service takes at these addresses, and nothing else.
    ///
    /// # Errors
    /// [`NftError`]; the next call starts from what it finds.
    pub fn sync(&mut self, announced: BTreeSet<IpAddr>) -> Result<(), NftError> {
        match self.known.take() {
            Some(known) if known == announced => {}
            Some(known) => self.change(&known, &announced)?,
            None => self.look(&announced)?,
        }
        self.known = Some(announced);
        Ok(())
    }

    /// Removes the tables. Returns how many there were.
    pub fn remove(kernel: &mut Kernel) -> Result<usize, NftError> {
        let mut removed = 0;
        for schema in Family::BOTH.map(schema) {
            if kernel.observe(&schema)?.is_there() {
                kernel.write(schema.family, |batch| batch.delete_table(schema.name))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Writes what differs between the known elements and these.
    fn change(
        &mut self,
        known: &BTreeSet<IpAddr>,
        announced: &BTreeSet<IpAddr>,
    ) -> Result<(), NftError> {
        for version in Family::BOTH {
            let mut delta = Delta::default();
            let of = |all: &BTreeSet<IpAddr>, other: &BTreeSet<IpAddr>| {
                elements(version, all.difference(other)).collect::<Vec<_>>()
            };
            delta.extend(of(known, announced), of(announced, known));
            if !delta.is_empty() {
                let schema = schema(version);
                self.kernel.write(schema.family, |batch| delta.write(batch, &schema))?;
            }
        }
        Ok(())
    }

    /// Reads the tables, and writes what differs from what they should be.
    fn look(&mut self, announced: &BTreeSet<IpAddr>) -> Result<(), NftError> {
        for version in Family::BOTH {
            let (schema, chains) = (schema(version), chains(version));
            let seen = self.kernel.observe(&schema)?;
            let wanted = elements(version, announced.iter());
            let mut batch = self.kernel.batch(schema.family, Some(seen.generation()));
            match seen.structure(&schema, &chains) {
                Some(structure) => {
                    let delta = seen.difference(wanted, |_| true);
                    if delta.is_empty() && structure == Default::default() {
                        continue;
                    }
                    structure.write(&mut batch, schema.name);
                    delta.write(&mut batch, &schema);
                    self.kernel.commit(batch)?;
                    self.kernel.write(schema.family, |batch| {
                        batch.delete_chains(schema.name, structure.left_over());
                    })?;
                }
                None => {
                    batch.replace_table(seen.is_there(), &schema, &chains);
                    batch.add_elements(&schema, &wanted.collect::<Vec<_>>());
                    self.kernel.commit(batch)?;
                }
            }
        }
        Ok(())
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
        room: None,
    }
}

/// Its chains: what is routed on, and what this node sends out. What is for this node itself is
/// left alone: a node-local DNS cache listens at a cluster IP.
fn chains(version: Family) -> [Chain; 2] {
    let chain = |name: &str, hook, why, asked: Option<Statement>| Chain {
        name: name.into(),
        base: Some(BaseChain { kind: Kind::Filter, hook, priority: PRIORITY }),
        why,
        rules: refused(version, asked).into(),
    };
    let leaves = Statement::NotEquals(Field::OutputInterface, Key::EMPTY.interface("lo"));
    [
        chain("forward", Hook::Forward, "what is routed to another node", None),
        chain("output", Hook::Output, "what this node sends", Some(leaves)),
    ]
}

/// TCP gets a reset, and no ICMP error: where a packet would leave by the interface that it came in
/// by, the kernel sends an ICMP redirect first, and its limit of the rate lets no error follow.
fn refused(version: Family, asked: Option<Statement>) -> [Rule; 2] {
    let is_tcp = Statement::Equals(Field::Protocol, Key::EMPTY.byte(TCP));
    let rule = |is_tcp: Option<Statement>, answer| {
        let is_announced = Statement::In(announced(version).lookup());
        let asked = asked.iter().cloned().chain(is_tcp).chain([is_announced]);
        let statements = asked.chain([Statement::Counter, Statement::Reject(answer)]).collect();
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
