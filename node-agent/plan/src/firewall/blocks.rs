//! The `ipBlock`s in use, cut into ranges that do not overlap: the kernel's sets allow neither
//! overlaps nor `except`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use super::peer::PeerId;
use denizen_model::Block;

/// Disjoint ranges, by first address, each with the blocks that contain all of it.
pub(super) type Pieces = BTreeMap<IpAddr, Piece>;

/// Addresses of one family from one to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    pub first: IpAddr,
    pub last: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub range: AddressRange,
    /// The peers whose blocks hold it, sorted.
    pub peers: Vec<PeerId>,
}

/// The first and the last address of a range, as numbers.
pub(super) type Span = (u128, u128);

/// Cuts the peers' blocks into the fewest pieces.
pub(super) fn pieces<'a>(peers: impl Iterator<Item = (PeerId, &'a [Block])>) -> Pieces {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for (peer, blocks) in peers {
        for (is_v4, edges) in [(true, &mut v4), (false, &mut v6)] {
            for (first, last) in spans_of(blocks.iter(), is_v4) {
                edges.push((first, Edge::Begin(peer)));
                // A range that ends with the greatest address of all has no edge after it.
                edges.extend(last.checked_add(1).map(|behind| (behind, Edge::End(peer))));
            }
        }
    }
    let mut pieces = sweep(v4, u32::MAX.into(), |at| Ipv4Addr::from(at as u32).into());
    pieces.extend(sweep(v6, u128::MAX, |at| Ipv6Addr::from(at).into()));
    pieces
}

/// Where blocks of a peer begin, or have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Begin(PeerId),
    End(PeerId),
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn span(range: &IpNetwork) -> Span {
    (number(range.network()), number(range.broadcast()))
}

/// What blocks of a family hold, sorted, without overlaps.
pub(super) fn spans_of<'a>(blocks: impl Iterator<Item = &'a Block>, is_v4: bool) -> Vec<Span> {
    let of_family = blocks.filter(|block| block.range.is_ipv4() == is_v4);
    joined(of_family.flat_map(spans).collect())
}

/// The addresses of a block: its range without its exceptions, which are sorted.
fn spans(block: &Block) -> Vec<Span> {
    let mut spans = Vec::with_capacity(1 + block.except.len());
    let (first, last) = span(&block.range);
    let mut next = Some(first);
    for (from, to) in block.except.iter().map(span) {
        let Some(at) = next else { break };
        if at < from {
            spans.push((at, from - 1));
        }
        next = if to < at { next } else { to.checked_add(1) };
    }
    spans.extend(next.filter(|at| *at <= last).map(|at| (at, last)));
    spans
}

/// Spans that overlap or touch become one. Sorted.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (first, last) in spans {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => joined.push((first, last)),
        }
    }
    joined
}

/// Between two edges, the same peers' blocks contain every address.
fn sweep(mut edges: Vec<(u128, Edge)>, max: u128, address: impl Fn(u128) -> IpAddr) -> Pieces {
    edges.sort_unstable();
    let (mut pieces, mut peers, mut from) = (Pieces::new(), BTreeSet::new(), 0);
    let mut piece = |from, to, peers: &BTreeSet<PeerId>| {
        if !peers.is_empty() {
            let range = AddressRange { first: address(from), last: address(to) };
            let peers = peers.iter().copied().collect();
            pieces.insert(range.first, Piece { range, peers });
        }
    };
    for here in edges.chunk_by(|(at, _), (next, _)| at == next) {
        let (at, _) = here[0];
        piece(from, at.saturating_sub(1), &peers);
        for (_, edge) in here {
            match edge {
                Edge::Begin(peer) => _ = peers.insert(*peer),
                Edge::End(peer) => _ = peers.remove(peer),
            }
        }
        from = at;
    }
    piece(from, max, &peers);
    pieces
}

impl AddressRange {
    pub fn contains(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

pub(super) fn piece_of(pieces: &Pieces, address: IpAddr) -> Option<&Piece> {
    let (_, piece) = pieces.range(..=address).next_back()?;
    piece.range.contains(address).then_some(piece)
}

#[cfg(test)]
mod tests {
    use super::super::peer::{PeerScope, PeerTable};
    use super::*;

    fn block((within, except): &(&str, &[&str])) -> Block {
        let range = |text: &str| text.parse::<IpNetwork>().unwrap();
        Block { range: range(within), except: except.iter().map(|text| range(text)).collect() }
    }

    fn peers(blocks: &[&[Block]]) -> Vec<PeerId> {
        let mut table = PeerTable::default();
        blocks.iter().map(|blocks| table.acquire(PeerScope::Blocks((*blocks).into()))).collect()
    }

    /// One peer for each block.
    fn cut_up(blocks: &[(&str, &[&str])]) -> Vec<(String, Vec<usize>)> {
        let blocks: Vec<Block> = blocks.iter().map(block).collect();
        let each: Vec<&[Block]> = blocks.chunks(1).collect();
        let ids = peers(&each);
        let number = |id: &PeerId| ids.iter().position(|other| other == id).unwrap();
        let pieces = pieces(ids.iter().copied().zip(each));
        let shown = pieces.values().map(|piece| {
            (piece.range.to_string(), piece.peers.iter().map(number).collect::<Vec<_>>())
        });
        shown.collect()
    }

    #[test]
    fn ranges_are_cut_where_blocks_begin_and_end() {
        let shown = cut_up(&[("10.0.0.0/8", &["10.128.0.0/9"]), ("10.0.0.0/9", &[])]);
        assert_eq!(shown, [("10.0.0.0-10.127.255.255".to_owned(), vec![0, 1])]);
        let shown = cut_up(&[("10.0.0.0/30", &["10.0.0.1/32"]), ("10.0.0.1/32", &[])]);
        let expected =
            [("10.0.0.0-10.0.0.0", 0), ("10.0.0.1-10.0.0.1", 1), ("10.0.0.2-10.0.0.3", 0)];
        assert_eq!(shown, expected.map(|(range, block)| (range.to_owned(), vec![block])));
        assert_eq!(cut_up(&[("0.0.0.0/0", &["0.0.0.0/0"])]), []);
        let all = "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".to_owned();
        assert_eq!(cut_up(&[("::/0", &[])]), [(all, vec![0])]);
        assert_eq!(cut_up(&[("::/0", &["8000::/1"])]).len(), 1);
        let all = "0.0.0.0-255.255.255.255".to_owned();
        assert_eq!(cut_up(&[("0.0.0.0/0", &[])]), [(all, vec![0])]);
        // Exceptions may lie within others.
        let shown = cut_up(&[("10.0.0.0/8", &["10.0.0.0/9", "10.1.0.0/16", "10.255.0.0/16"])]);
        assert_eq!(shown, [("10.128.0.0-10.254.255.255".to_owned(), vec![0])]);
    }

    /// Every range costs memory in the kernel.
    #[test]
    fn neighbours_that_the_same_peers_hold_are_one_range() {
        let quarters = (0..4).map(|n| format!("10.0.0.{}/26", n * 64));
        let quarters: Vec<Block> = quarters.map(|range| block(&(&range, &[]))).collect();
        let nested = [block(&("10.0.0.0/24", &["10.0.0.128/25"])), block(&("10.0.0.9/32", &[]))];
        let blocks = [quarters, nested.into()].concat();
        let pieces = pieces(peers(&[&blocks]).into_iter().zip([&blocks[..]]));
        let ranges: Vec<_> = pieces.values().map(|piece| piece.range.to_string()).collect();
        assert_eq!(ranges, ["10.0.0.0-10.0.0.255"]);
    }

    #[test]
    fn each_address_is_in_the_piece_of_exactly_its_blocks() {
        let of: [&[(&str, &[&str])]; 4] = [
            &[("10.0.0.0/28", &["10.0.0.4/30", "10.0.0.9/32"])],
            &[("10.0.0.8/29", &[])],
            &[("0.0.0.0/0", &["10.0.0.0/29"])],
            // What one of its blocks leaves out, another holds in part.
            &[
                ("10.0.0.0/27", &["10.0.0.0/28"]),
                ("10.0.0.4/31", &[]),
                ("10.0.0.0/28", &["10.0.0.0/29"]),
            ],
        ];
        let blocks = of.map(|blocks| blocks.iter().map(block).collect::<Vec<_>>());
        let each: Vec<&[Block]> = blocks.iter().map(|blocks| &**blocks).collect();
        let ids = peers(&each);
        let pieces = pieces(ids.iter().copied().zip(each));
        for last in 0..=33 {
            let address: IpAddr = format!("10.0.0.{last}").parse().unwrap();
            let holds = |blocks: &Vec<Block>| blocks.iter().any(|block| block.contains(address));
            let expected: Vec<PeerId> =
                ids.iter().zip(&blocks).filter(|(_, b)| holds(b)).map(|(id, _)| *id).collect();
            let found = piece_of(&pieces, address).map(|piece| piece.peers.clone());
            assert_eq!(found.unwrap_or_default(), expected, "{address}");
        }
    }
}
