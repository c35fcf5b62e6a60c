//! The elements of a table, as the kernel has them.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::bytes::Key;
use crate::observed_element::ObservedElement;
use crate::set::{SetId, Value};

/// The elements of a table that were read. A firewall of a large cluster has 350,000, most of them
/// plain members of sets, so a key is stored in its own length, and a plain member needs no value.
#[derive(Debug, Default)]
pub(crate) struct ObservedElements {
    /// Set and key of each element, one element behind the other.
    keys: Vec<u8>,
    /// Where each element's key ends in `keys`.
    ends: Vec<u32>,
    /// What each element leads to: an index in `values`, from 1 on; 0 for a plain member.
    value_indexes: Vec<u32>,
    values: Vec<ObservedElement>,
    /// The elements' numbers, to be found by set and key.
    numbers: HashTable<u32>,
    hasher: RandomState,
}

const MEMBER: ObservedElement = (Some(Value::Member), None);

impl ObservedElements {
    /// Notes an element. If there is one with this key, it is replaced.
    pub fn insert(&mut self, set: SetId, key: &Key, element: ObservedElement) {
        let Self { keys, ends, value_indexes, values, numbers, hasher } = self;
        let wanted = (set.0, key.as_bytes());
        let of = |number: &u32| record(keys, ends, *number);
        let found = numbers.entry(
            hasher.hash_one(wanted),
            |number| of(number) == wanted,
            |number| hasher.hash_one(of(number)),
        );
        let number = match found {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let number = ends.len() as u32;
                keys.push(set.0);
                keys.extend_from_slice(key.as_bytes());
                ends.push(keys.len() as u32);
                value_indexes.push(0);
                *new.insert(number).get()
            }
        };
        value_indexes[number as usize] = match element == MEMBER {
            true => 0,
            false => {
                values.push(element);
                values.len() as u32
            }
        };
    }

    /// The number of an element, below [`Self::len`].
    pub fn number(&self, set: SetId, key: &Key) -> Option<u32> {
        let wanted = (set.0, key.as_bytes());
        let is_wanted = |number: &u32| record(&self.keys, &self.ends, *number) == wanted;
        self.numbers.find(self.hasher.hash_one(wanted), is_wanted).copied()
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// What the element with this number leads to.
    pub fn element(&self, number: u32) -> &ObservedElement {
        static PLAIN: ObservedElement = MEMBER;
        let index = self.value_indexes[number as usize].checked_sub(1);
        index.map_or(&PLAIN, |index| &self.values[index as usize])
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (SetId, Key, &ObservedElement)> {
        (0..self.ends.len() as u32).map(|number| {
            let (set, key) = record(&self.keys, &self.ends, number);
            let key = Key::from_bytes(key).expect("a key has as many bytes as it was noted with");
            (SetId(set), key, self.element(number))
        })
    }
}

/// The set and the key of an element.
fn record<'a>(keys: &'a [u8], ends: &[u32], number: u32) -> (u8, &'a [u8]) {
    let number = number as usize;
    let begin = number.checked_sub(1).map_or(0, |before| ends[before]);
    let record = &keys[begin as usize..ends[number] as usize];
    (record[0], &record[1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Data;

    #[test]
    fn elements_are_found_by_set_and_key_and_the_last_of_two_counts() {
        let key = |number: u32| match number % 3 {
            0 => Key::EMPTY,
            1 => Key::EMPTY.number(number),
            _ => Key::EMPTY.number(number).byte(7),
        };
        let value = |number| (Some(Value::Data(Data::EMPTY.number(number))), None);
        let mut seen = ObservedElements::default();
        for number in 0..1000 {
            seen.insert(SetId(number as u8), &key(number), MEMBER);
        }
        seen.insert(SetId(4), &key(4), value(1));
        seen.insert(SetId(4), &key(4), value(2));
        seen.insert(SetId(5), &key(5), value(3));
        seen.insert(SetId(5), &key(5), MEMBER);
        assert_eq!(seen.iter().filter(|(.., element)| **element != MEMBER).count(), 1);
        for (at, (set, key, element)) in (0..).zip(seen.iter()) {
            assert_eq!(seen.number(set, &key), Some(at));
            assert_eq!(seen.element(at), element);
        }
        assert_eq!(*seen.element(seen.number(SetId(4), &key(4)).unwrap()), value(2));
        assert_eq!(seen.number(SetId(4), &key(5)), None);
        assert_eq!(seen.number(SetId(4), &Key::EMPTY.number(4).byte(0)), None);
    }
}
