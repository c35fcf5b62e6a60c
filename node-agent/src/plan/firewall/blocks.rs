//! `ipBlock`s in use, cut into ranges that do not overlap: sets of the kernel have no overlapping
//! ranges, and no `except`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::peer::PeerId;
use crate::model::Block;

/// Ranges that do not overlap, by first address, each with the blocks that hold all of it.
pub(super) type Pieces = BTreeMap<IpAddr, Piece>;

/// A range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The range.
    pub range: IpNetwork,
    /// The blocks that hold it, sorted.
    pub peers: Vec<PeerId>,
}

/// The blocks that begin at a range, and those of which it is an exception.
#[derive(Debug, Default)]
struct Edge {
    begin: Vec<PeerId>,
    end: Vec<PeerId>,
}

/// Cuts the blocks into pieces.
pub(super) fn pieces<'a>(blocks: impl Iterator<Item = (PeerId, &'a Block)>) -> Pieces {
    let mut edges: BTreeMap<IpNetwork, Edge> = BTreeMap::new();
    for (peer, block) in blocks {
        edges.entry(block.range).or_default().begin.push(peer);
        for range in &block.except {
            edges.entry(*range).or_default().end.push(peer);
        }
    }
    let mut pieces = Pieces::new();
    let everything = ["0.0.0.0/0", "::/0"].map(|text| text.parse::<IpNetwork>());
    for whole in everything.into_iter().flatten() {
        let of_family = edges.iter().filter(|(range, _)| range.is_ipv4() == whole.is_ipv4());
        cut(whole, &BTreeSet::new(), &of_family.collect::<Vec<_>>(), &mut pieces);
    }
    pieces
}

/// Halves a range until no block begins or ends inside. `edges` are those at or within it, sorted.
fn cut(
    range: IpNetwork,
    outer: &BTreeSet<PeerId>,
    edges: &[(&IpNetwork, &Edge)],
    pieces: &mut Pieces,
) {
    let mut peers = outer.clone();
    let here = edges.iter().filter(|(at, _)| **at == range);
    for (_, Edge { begin, end }) in here {
        peers.extend(begin);
        peers.retain(|peer| !end.contains(peer));
    }
    let inside: Vec<_> = edges.iter().filter(|(at, _)| **at != range).copied().collect();
    if let Some(halves) = halves(range).filter(|_| !inside.is_empty()) {
        for half in halves {
            let within = inside.iter().filter(|(at, _)| half.contains(at.network()));
            let within: Vec<_> = within.copied().collect();
            if !within.is_empty() || !peers.is_empty() {
                cut(half, &peers, &within, pieces);
            }
        }
    } else if !peers.is_empty() {
        let peers = peers.into_iter().collect();
        pieces.insert(range.network(), Piece { range, peers });
    }
}

fn halves(range: IpNetwork) -> Option<[IpNetwork; 2]> {
    match range {
        IpNetwork::V4(range) => {
            let prefix = range.prefix() + 1;
            let bit = 1_u32.checked_shl(32_u32.checked_sub(u32::from(prefix))?)?;
            let upper = (u32::from(range.network()) | bit).into();
            let half = |at| Ipv4Network::new(at, prefix).ok().map(IpNetwork::V4);
            Some([half(range.network())?, half(upper)?])
        }
        IpNetwork::V6(range) => {
            let prefix = range.prefix() + 1;
            let bit = 1_u128.checked_shl(128_u32.checked_sub(u32::from(prefix))?)?;
            let upper = (u128::from(range.network()) | bit).into();
            let half = |at| Ipv6Network::new(at, prefix).ok().map(IpNetwork::V6);
            Some([half(range.network())?, half(upper)?])
        }
    }
}

/// The piece that an address is in.
pub(super) fn piece_of(pieces: &Pieces, address: IpAddr) -> Option<&Piece> {
    let (_, piece) = pieces.range(..=address).next_back()?;
    piece.range.contains(address).then_some(piece)
}

#[cfg(test)]
mod tests {
    use super::super::peer::{Covers, PeerTable};
    use super::*;

    fn cut_up(blocks: &[(&str, &[&str])]) -> Vec<(String, Vec<usize>)> {
        let range = |text: &&str| text.parse::<IpNetwork>().unwrap();
        let blocks: Vec<Block> = blocks
            .iter()
            .map(|(within, except)| Block {
                range: range(within),
                except: except.iter().map(range).collect(),
            })
            .collect();
        let mut table = PeerTable::default();
        let ids: Vec<PeerId> =
            blocks.iter().map(|block| table.acquire(Covers::Block(block.clone()))).collect();
        let number = |id: &PeerId| ids.iter().position(|other| other == id).unwrap();
        let pieces = pieces(ids.iter().copied().zip(&blocks));
        let shown = pieces.values().map(|piece| {
            (piece.range.to_string(), piece.peers.iter().map(number).collect::<Vec<_>>())
        });
        shown.collect()
    }

    #[test]
    fn ranges_are_cut_where_blocks_begin_and_end() {
        let shown = cut_up(&[("10.0.0.0/8", &["10.128.0.0/9"]), ("10.0.0.0/9", &[])]);
        assert_eq!(shown, [("10.0.0.0/9".to_owned(), vec![0, 1])]);
        let shown = cut_up(&[("10.0.0.0/30", &["10.0.0.1/32"]), ("10.0.0.1/32", &[])]);
        let expected = [("10.0.0.0/32", 0), ("10.0.0.1/32", 1), ("10.0.0.2/31", 0)];
        assert_eq!(shown, expected.map(|(range, block)| (range.to_owned(), vec![block])));
        assert_eq!(cut_up(&[("0.0.0.0/0", &["0.0.0.0/0"])]), []);
        assert_eq!(cut_up(&[("::/0", &[])]), [("::/0".to_owned(), vec![0])]);
    }

    #[test]
    fn each_address_is_in_the_piece_of_exactly_its_blocks() {
        let range = |text: &str| text.parse::<IpNetwork>().unwrap();
        let block = |within, except: &[&str]| Block {
            range: range(within),
            except: except.iter().map(|text| range(text)).collect(),
        };
        let blocks = [
            block("10.0.0.0/28", &["10.0.0.4/30", "10.0.0.9/32"]),
            block("10.0.0.8/29", &[]),
            block("0.0.0.0/0", &["10.0.0.0/29"]),
        ];
        let mut table = PeerTable::default();
        let ids: Vec<PeerId> =
            blocks.iter().map(|block| table.acquire(Covers::Block(block.clone()))).collect();
        let pieces = pieces(ids.iter().copied().zip(&blocks));
        for last in 0..=17 {
            let address: IpAddr = format!("10.0.0.{last}").parse().unwrap();
            let holds = |block: &Block| {
                block.range.contains(address) && !block.except.iter().any(|r| r.contains(address))
            };
            let expected: Vec<PeerId> =
                ids.iter().zip(&blocks).filter(|(_, b)| holds(b)).map(|(id, _)| *id).collect();
            let found = piece_of(&pieces, address).map(|piece| piece.peers.clone());
            assert_eq!(found.unwrap_or_default(), expected, "{address}");
        }
    }
}
