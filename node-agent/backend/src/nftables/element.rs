//! Keys of frontends, in the driver's terms.

use denizen_model::{Family, Protocol};
use denizen_nft::{Field, Key, Set, read_address};
use denizen_plan::{FrontendAddress, FrontendKey};

/// The beginning of the key of each element of a frontend.
pub fn frontend_key(frontend: &FrontendKey) -> Key {
    let key = match frontend.address {
        FrontendAddress::Ip(address) => Key::EMPTY.address(address),
        FrontendAddress::Node(_) => Key::EMPTY,
    };
    key.byte(frontend.protocol.number()).port(frontend.port.get())
}

/// The frontend to which an element with this key in this set belongs; `None` if the set has no
/// elements of frontends.
pub fn frontend_of(family: Family, set: &Set, key: &Key) -> Option<FrontendKey> {
    let (address, rest) = split(family, set, key)?;
    let protocol = Protocol::from_number(*rest.first()?)?;
    let port = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?).try_into().ok()?;
    Some(FrontendKey { address, protocol, port })
}

/// The protocol and the endpoint's number in the key of an element of a map of endpoints by number.
/// The number is at the key's end.
pub fn protocol_and_number(family: Family, set: &Set, key: &Key) -> Option<(Protocol, u32)> {
    let (_, rest) = split(family, set, key)?;
    let number = u32::from_ne_bytes(*rest.last_chunk()?);
    Some((Protocol::from_number(*rest.first()?)?, number))
}

/// Splits a key into the frontend's address and the rest.
fn split<'a>(family: Family, set: &Set, key: &'a Key) -> Option<(FrontendAddress, &'a [u8])> {
    let bytes = key.as_bytes();
    match set.key[..] {
        [Field::Protocol, Field::DestinationPort, ..] => {
            Some((FrontendAddress::Node(family), bytes))
        }
        [Field::Destination(version), Field::Protocol, Field::DestinationPort, ..] => {
            let address = read_address(version, bytes)?;
            Some((FrontendAddress::Ip(address), bytes.get(version.address_len()..)?))
        }
        _ => None,
    }
}
