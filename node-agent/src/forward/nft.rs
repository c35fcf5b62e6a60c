//! The forward hook of other nf_tables tables (iptables-nft's among them), through netlink.

use std::collections::BTreeMap;

use nix::libc;

use super::chain::{Act, Chains, Rule, filter};
use super::own::{Asks, Language, write};
use super::{Chain, OWN};
use crate::backend::nftables::foreign::{comment, commit, dump, expressions, handle, retried};
use crate::backend::nftables::kind;
use crate::plan::MarkBit;
use denizen_netlink::{Attributes, Message, NetlinkError, Socket};

/// A base chain of somebody else in the forward hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    family: u8,
    table: String,
    chain: String,
    policy_drops: bool,
}

/// Whose table that is which no one calls foreign.
const OUR_TABLE: &str = "denizen";

/// Every such chain, judged.
///
/// # Errors
/// [`NetlinkError`].
pub fn read(socket: &mut Socket) -> Result<Vec<(Place, Chain)>, NetlinkError> {
    let places = retried(|| places(socket))?;
    let mut found = Vec::new();
    for place in places {
        let chains = retried(|| reachable(socket, &place))?;
        let own = chains.get(&place.chain).into_iter().flatten();
        let chain = Chain {
            what: format!(
                "table {} {}, chain {}",
                family_name(place.family),
                place.table,
                place.chain
            ),
            judgement: filter(&chains, &place.chain, place.policy_drops),
            own: own.filter_map(|rule| rule.own).collect(),
        };
        found.push((place, chain));
    }
    Ok(found)
}

fn family_name(family: u8) -> &'static str {
    match i32::from(family) {
        libc::NFPROTO_IPV4 => "ip",
        libc::NFPROTO_IPV6 => "ip6",
        _ => "inet",
    }
}

fn places(socket: &mut Socket) -> Result<Vec<Place>, NetlinkError> {
    const DORMANT: u32 = 1;
    let mut asleep = Vec::new();
    dump(socket, libc::NFT_MSG_GETTABLE, 0, &[], |table| {
        let attributes = table.attributes();
        if attributes.find_u32(2).is_some_and(|flags| flags & DORMANT != 0) {
            asleep.push((table.family(), attributes.find_str(1).map(str::to_owned)));
        }
    })?;
    let mut found = Vec::new();
    dump(socket, libc::NFT_MSG_GETCHAIN, 0, &[], |chain| found.extend(place(&chain)))?;
    found.retain(|place| !asleep.contains(&(Some(place.family), Some(place.table.clone()))));
    Ok(found)
}

fn place(chain: &Message<'_>) -> Option<Place> {
    let attributes = chain.attributes();
    let hook = attributes.nested(4).find_u32(1)?;
    let family = chain.family()?;
    let place = Place {
        family,
        table: attributes.find_str(1)?.to_owned(),
        chain: attributes.find_str(3)?.to_owned(),
        policy_drops: attributes.find_u32(5) == Some(libc::NF_DROP as u32),
    };
    let routed =
        [libc::NFPROTO_INET, libc::NFPROTO_IPV4, libc::NFPROTO_IPV6].contains(&i32::from(family));
    (routed && hook == libc::NF_INET_FORWARD as u32 && place.table != OUR_TABLE).then_some(place)
}

/// The rules of a base chain and of every chain that it may lead to.
fn reachable(socket: &mut Socket, place: &Place) -> Result<Chains, NetlinkError> {
    let mut chains = BTreeMap::new();
    let mut due = vec![place.chain.clone()];
    while let Some(name) = due.pop() {
        if chains.contains_key(&name) {
            continue;
        }
        let mut rules = Vec::new();
        let of = [place.table.as_str(), name.as_str()];
        dump(socket, libc::NFT_MSG_GETRULE, place.family, &of, |message| {
            rules.push(rule(message.attributes()));
        })?;
        for rule in &rules {
            if let Act::Jump(to) | Act::Goto(to) = &rule.act {
                due.push(to.clone());
            }
        }
        chains.insert(name, rules);
    }
    Ok(chains)
}

fn rule(attributes: Attributes<'_>) -> Rule {
    // These load or change values, count or log; all others ask something.
    const ASK_NOTHING: [&str; 14] = [
        "counter",
        "log",
        "immediate",
        "reject",
        "target",
        "objref",
        "notrack",
        "meta",
        "payload",
        "ct",
        "bitwise",
        "byteorder",
        "numgen",
        "hash",
    ];
    let mut found = Rule { conditional: false, act: Act::Nothing, own: None };
    for (name, data) in expressions(attributes) {
        found.conditional |= !ASK_NOTHING.contains(&name);
        if let Some(act) = act(name, data) {
            found.act = act;
        }
    }
    let ours = comment(attributes).is_some_and(|text| text.starts_with(OWN));
    found.own = handle(attributes).filter(|_| ours);
    found
}

/// What an expression does, if it decides.
fn act(name: &str, data: Attributes<'_>) -> Option<Act> {
    const VERDICT_REGISTER: u32 = 0;
    match name {
        "immediate" if data.find_u32(1) == Some(VERDICT_REGISTER) => {
            let verdict = data.nested(2).nested(2);
            let to = || verdict.find_str(2).unwrap_or_default().to_owned();
            Some(match verdict.find_u32(1).map(|code| code as i32) {
                Some(libc::NF_DROP) => Act::Drop,
                Some(libc::NF_ACCEPT) => Act::Accept,
                Some(libc::NFT_JUMP) => Act::Jump(to()),
                Some(libc::NFT_GOTO) => Act::Goto(to()),
                Some(libc::NFT_RETURN) => Act::Return,
                Some(libc::NFT_CONTINUE) => Act::Nothing,
                _ => Act::Unknown,
            })
        }
        "reject" => Some(Act::Drop),
        // A map of verdicts has one as its destination.
        "lookup" => (data.find_u32(3) == Some(VERDICT_REGISTER)).then_some(Act::Unknown),
        "queue" => Some(Act::Unknown),
        "target" => match data.find_str(1).unwrap_or_default() {
            "REJECT" => Some(Act::Drop),
            "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" => None,
            _ => Some(Act::Unknown),
        },
        _ => None,
    }
}

/// Puts our rules first in a chain.
///
/// # Errors
/// [`NetlinkError`].
pub fn open(socket: &mut Socket, place: &Place, admitted: MarkBit) -> Result<(), NetlinkError> {
    let language = match (place.table.as_str(), place.chain.as_str()) {
        ("filter", "FORWARD") if i32::from(place.family) != libc::NFPROTO_INET => Language::Xtables,
        _ => Language::Nft,
    };
    // Each is put before what is there.
    let each = [Asks::Services(admitted), Asks::Answers];
    let written = commit(socket, None, &each, |w, sequence, asks| {
        const CREATE: u16 = libc::NLM_F_CREATE as u16;
        let open = w.begin_message(kind(libc::NFT_MSG_NEWRULE), CREATE, sequence, place.family, 0);
        w.put_str(1, &place.table);
        w.put_str(2, &place.chain);
        let list = w.begin(4);
        write(w, language, *asks);
        w.end(list);
        let text = [asks.comment().as_bytes(), &[0]].concat();
        w.put(7, &[&[0, text.len() as u8], text.as_slice()].concat());
        w.end_message(open);
    });
    Ok(written?)
}

/// Removes our rules from a chain.
///
/// # Errors
/// [`NetlinkError`].
pub fn close(socket: &mut Socket, place: &Place, own: &[u64]) -> Result<(), NetlinkError> {
    let written = commit(socket, None, own, |w, sequence, handle| {
        let open = w.begin_message(kind(libc::NFT_MSG_DELRULE), 0, sequence, place.family, 0);
        w.put_str(1, &place.table);
        w.put_str(2, &place.chain);
        w.put(3, &handle.to_be_bytes());
        w.end_message(open);
    });
    Ok(written?)
}
