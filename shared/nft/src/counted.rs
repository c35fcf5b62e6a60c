//! Elements that packets add to a set and that count packets
//! ([`Operation::Count`](crate::Operation::Count)), as the kernel reports them.

use std::time::Duration;

use denizen_netlink::{Attributes, Message};

use crate::bytes::Key;

/// An element, and the number of packets that had its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedElement {
    /// The element's key.
    pub key: Key,
    /// How many packets had the key, the one that made the element among them.
    pub packets: u64,
    /// The time until the kernel removes it, to the millisecond.
    pub expires_in: Duration,
}

impl CountedElement {
    /// The elements in a NFT_MSG_NEWSETELEM. Those without a counter are left out.
    pub(crate) fn read_all(message: Message<'_>) -> impl Iterator<Item = Self> {
        message
            .attributes()
            .nested(3)
            .filter_map(|(_, element)| Self::read(Attributes::new(element)))
    }

    fn read(element: Attributes<'_>) -> Option<Self> {
        // `enum nft_set_elem_attributes`.
        const KEY: u16 = 1;
        const EXPIRATION: u16 = 5;
        const EXPRESSION: u16 = 7;
        let key = Key::from_bytes(element.nested(KEY).find(1)?)?;
        let counter = element.nested(EXPRESSION);
        let packets = counter.nested(2).find(2).filter(|_| counter.find_str(1) == Some("counter"));
        let expires_in = element.find(EXPIRATION).and_then(number).unwrap_or_default();
        Some(Self {
            key,
            packets: number(packets?)?,
            expires_in: Duration::from_millis(expires_in),
        })
    }
}

fn number(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use denizen_netlink::Writer;

    use super::*;

    /// An element as the kernel writes it. `counter`: the expression's name, and what it holds.
    fn element(key: &[u8], counter: Option<(&str, &[u8])>) -> Vec<u8> {
        let mut w = Writer::default();
        let open = w.begin(1);
        w.put(1, key);
        w.end(open);
        w.put(5, &2_500_u64.to_be_bytes());
        if let Some((name, packets)) = counter {
            let open = w.begin(7);
            w.put_str(1, name);
            let data = w.begin(2);
            w.put(1, &600_u64.to_be_bytes());
            w.put(2, packets);
            w.end(data);
            w.end(open);
        }
        w.bytes().to_vec()
    }

    #[test]
    fn an_element_is_read_if_it_counts_packets() {
        let packets = 7_u64.to_be_bytes();
        let read = |bytes: &[u8]| CountedElement::read(Attributes::new(bytes));
        let expires_in = Duration::from_millis(2_500);
        let expected = CountedElement { key: Key::EMPTY.byte(6).port(80), packets: 7, expires_in };
        assert_eq!(
            read(&element(&[6, 0, 0, 0, 0, 80, 0, 0], Some(("counter", &packets)))),
            Some(expected)
        );
        let others = [
            element(&[6, 0, 0, 0], None),
            element(&[6, 0, 0, 0], Some(("limit", &packets))),
            element(&[6, 0, 0, 0], Some(("counter", &packets[1..]))),
            element(&[6; 80], Some(("counter", &packets))),
            Vec::new(),
        ];
        for other in others {
            assert_eq!(read(&other), None, "{other:?}");
        }
    }
}
