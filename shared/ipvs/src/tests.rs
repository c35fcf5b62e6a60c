//! Commands as bytes, and what is read from the kernel's.

use std::time::Duration;

use denizen_netlink::{Attributes, Writer};

use super::message::{
    IPVS_CMD_GET_CONFIG, read_info, read_real, read_server, read_timeouts, write_timeouts,
};
use super::*;

const TCP: u8 = 6;

fn key(at: &str) -> ServerKey {
    ServerKey { at: at.parse().expect("an address"), protocol: TCP }
}

fn server(at: &str, flags: u32) -> VirtualServer {
    VirtualServer { key: key(at), scheduler: "mh".into(), flags }
}

fn real(at: &str, weight: u32) -> RealServer {
    RealServer { at: at.parse().expect("an address"), weight }
}

/// The attributes as text: kind and bytes, nested ones in brackets.
fn written(fill: impl FnOnce(&mut Writer)) -> String {
    let mut writer = Writer::default();
    fill(&mut writer);
    let nests = [1, 2];
    let plain = |(kind, bytes): (u16, &[u8])| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{kind}={hex}")
    };
    let outer = Attributes::new(writer.bytes()).map(|(kind, bytes)| {
        if nests.contains(&kind) {
            let inner: Vec<_> = Attributes::new(bytes).map(plain).collect();
            format!("{kind}[{}]", inner.join(" "))
        } else {
            plain((kind, bytes))
        }
    });
    outer.collect::<Vec<_>>().join(" ")
}

/// By linux/ip_vs.h, on a little-endian machine: the family, the protocol, the address padded to 16
/// bytes, and the port in network order identify a server.
#[cfg(target_endian = "little")]
#[test]
fn commands_are_written_as_the_kernel_reads_them() {
    const V4: &str = "1=0200 2=0600 3=0a60000a000000000000000000000000 4=0050";
    const V6: &str = "1=0a00 2=0600 3=fd960000000000000000000000000010 4=0050";
    const REAL4: &str = "11=0200 1=0a010002000000000000000000000000 2=1f90";
    const REAL6: &str = "11=0a00 1=fd010000000000000000000000000002 2=1f90";
    let (v4, v6) = (key("10.96.0.10:80"), key("[fd96::10]:80"));
    let cases = [
        (
            IpvsCommand::Add(server("10.96.0.10:80", PORT_HASHED | FALLBACK)),
            1,
            format!("1[{V4} 6=6d6800 7=18000000fdffffff 8=00000000 9=ffffffff]"),
        ),
        (
            IpvsCommand::Change(server("[fd96::10]:80", 0)),
            2,
            format!("1[{V6} 6=6d6800 7=00000000fdffffff 8=00000000 9=80000000]"),
        ),
        (IpvsCommand::Remove(v6), 3, format!("1[{V6}]")),
        (
            IpvsCommand::AddReal(v4, real("10.1.0.2:8080", 1)),
            5,
            format!("1[{V4}] 2[{REAL4} 3=00000000 4=01000000 5=00000000 6=00000000]"),
        ),
        (
            IpvsCommand::ChangeReal(v6, real("[fd01::2]:8080", 0)),
            6,
            format!("1[{V6}] 2[{REAL6} 3=00000000 4=00000000 5=00000000 6=00000000]"),
        ),
        (
            IpvsCommand::RemoveReal(v4, real("10.1.0.2:8080", 1).at),
            7,
            format!("1[{V4}] 2[{REAL4}]"),
        ),
    ];
    for (command, number, bytes) in cases {
        assert_eq!((command.number(), written(|out| command.write(out))), (number, bytes));
    }
    let timeouts = Timeouts {
        tcp: Duration::from_secs(86_400),
        tcp_fin: Duration::from_secs(120),
        udp: Duration::from_secs(300),
    };
    let bytes = written(|out| write_timeouts(out, &timeouts));
    assert_eq!((IPVS_CMD_GET_CONFIG, &*bytes), (13, "4=80510100 5=78000000 6=2c010000"));
}

/// What is written, and what the kernel adds to it, is read back.
#[test]
fn answers_are_read_back() {
    for (at, flags) in [("10.96.0.10:80", 0), ("[fd96::10]:53", PORT_HASHED)] {
        let wanted = server(at, flags);
        let mut writer = Writer::default();
        IpvsCommand::Add(wanted.clone()).write(&mut writer);
        assert_eq!(read_server(Attributes::new(writer.bytes())), Some(wanted));
    }
    let observed = |method: u32| {
        let mut writer = Writer::default();
        let open = writer.begin(2);
        let fields: [(u16, &[u8]); 7] = [
            (1, &[10, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (2, &8080_u16.to_be_bytes()),
            // The kernel's own bits beside the method.
            (3, &(method | 0x100).to_ne_bytes()),
            (4, &5_u32.to_ne_bytes()),
            (7, &3_u32.to_ne_bytes()),
            (8, &2_u32.to_ne_bytes()),
            (10, &[0; 64]),
        ];
        fields.iter().for_each(|(kind, bytes)| writer.put(*kind, bytes));
        writer.end(open);
        read_real(Attributes::new(writer.bytes()), &key("10.96.0.10:80"))
    };
    for (method, translates) in [(0, true), (1, true), (2, false), (3, false)] {
        let real = real("10.1.0.2:8080", 5);
        let wanted = ObservedServer { real, translates, active: 3, inactive: 2 };
        assert_eq!(observed(method), Some(wanted), "method {method}");
    }
}

#[test]
fn configuration_is_read_back() {
    let timeouts = Timeouts {
        tcp: Duration::from_secs(900),
        tcp_fin: Duration::from_secs(120),
        udp: Duration::from_secs(300),
    };
    let mut writer = Writer::default();
    write_timeouts(&mut writer, &timeouts);
    assert_eq!(read_timeouts(Attributes::new(writer.bytes())), Some(timeouts));
    let mut writer = Writer::default();
    writer.put(1, &0x0001_0201_u32.to_ne_bytes());
    writer.put(2, &4096_u32.to_ne_bytes());
    let info = Info { version: 0x0001_0201, connection_rows: 4096 };
    assert_eq!(read_info(Attributes::new(writer.bytes())), Some(info));
}

/// A server by a packet's mark has no address, and bytes may be cut short.
#[test]
fn what_is_no_server_is_not_read() {
    let mut writer = Writer::default();
    let open = writer.begin(1);
    writer.put(1, &2_u16.to_ne_bytes());
    writer.put(5, &7_u32.to_ne_bytes());
    writer.put_str(6, "rr");
    writer.put(7, &[0; 8]);
    writer.end(open);
    assert_eq!(read_server(Attributes::new(writer.bytes())), None);

    let mut writer = Writer::default();
    IpvsCommand::Add(server("[fd96::10]:80", 0)).write(&mut writer);
    IpvsCommand::AddReal(key("10.96.0.10:80"), real("10.1.0.2:80", 1)).write(&mut writer);
    for end in 0..writer.bytes().len() {
        let cut = Attributes::new(&writer.bytes()[..end]);
        let _ = (read_server(cut), read_real(cut, &key("10.96.0.10:80")));
    }
}
