//! Addresses for people.

use std::net::SocketAddr;

/// An address, with a name if it has one. Port 0 stands for none, and is left out.
pub fn named_address(address: SocketAddr, name: Option<&str>) -> String {
    let address = match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    };
    match name {
        Some(name) => format!("{address} ({name})"),
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_left_out() {
        let cases = [
            ("10.0.0.1:80", None, "10.0.0.1:80"),
            ("10.0.0.1:0", Some("shop/web"), "10.0.0.1 (shop/web)"),
            ("[fd00::1]:0", None, "fd00::1"),
            ("[fd00::1]:53", Some("dns"), "[fd00::1]:53 (dns)"),
        ];
        for (address, name, expected) in cases {
            assert_eq!(named_address(address.parse().unwrap(), name), expected);
        }
    }
}
