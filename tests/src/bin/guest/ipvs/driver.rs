//! The driver of IPVS, against what ipvsadm says and makes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_ipvs::{
    FALLBACK, Ipvs, IpvsCommand, ObservedServer, PORT_HASHED, RealServer, RejectedCommand,
    ServerKey, Timeouts, VirtualServer,
};
use denizen_tests::node::netns::Netns;
use nix::errno::Errno;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// So many virtual servers that their commands need several batches, and the kernel lists them in
/// several messages.
const MANY: u16 = 400;

fn key(at: &str, protocol: u8) -> Result<ServerKey> {
    Ok(ServerKey { at: at.parse()?, protocol })
}

fn server(key: ServerKey, scheduler: &str, flags: u32) -> VirtualServer {
    VirtualServer { key, scheduler: scheduler.into(), flags }
}

fn real(at: &str, weight: u32) -> Result<RealServer> {
    Ok(RealServer { at: at.parse()?, weight })
}

/// Makes, changes, lists and removes virtual servers; ipvsadm must say the same.
pub(crate) fn agrees_with_ipvsadm() -> Result<()> {
    let node = Netns::new("ipvs")?;
    node.ip("link set lo up\naddr add 192.168.0.2/32 dev lo")?;
    let mut ipvs = node.run(Ipvs::open)??;
    // Linux 7.2 makes the table with the first connection.
    let rows = ipvs.info()?.connection_rows;
    ensure!(rows == 0 || rows.is_power_of_two(), "{rows}");
    ensure!(ipvs.servers()?.is_empty(), "a new namespace has servers");
    one_by_one(&node, &mut ipvs)?;
    refusals(&node, &mut ipvs)?;
    foreign_servers(&node, &mut ipvs)?;
    timeouts(&node, &mut ipvs)?;
    ipvs.flush()?;
    ensure!(saved(&node)?.is_empty(), "{:?}", saved(&node)?);
    many(&node, &mut ipvs)
}

/// What ipvsadm says, sorted.
fn saved(node: &Netns) -> Result<Vec<String>> {
    let saved = node.output("ipvsadm", &["--save", "--numeric"])?;
    let mut lines: Vec<String> = saved.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort_unstable();
    Ok(lines)
}

fn ensure_saved(node: &Netns, wanted: &[&str]) -> Result<()> {
    let saved = saved(node)?;
    ensure!(saved == wanted, "{saved:#?}\ninstead of {wanted:#?}");
    Ok(())
}

fn ensure_done(ipvs: &mut Ipvs, commands: &[IpvsCommand]) -> Result<()> {
    let refused = ipvs.apply(commands)?;
    ensure!(refused.is_empty(), "{refused:?} of {commands:?}");
    Ok(())
}

fn one_by_one(node: &Netns, ipvs: &mut Ipvs) -> Result<()> {
    let (web, web6) = (key("10.96.0.10:80", TCP)?, key("[fd96::10]:80", TCP)?);
    let (dns, sctp) = (key("10.96.0.10:53", UDP)?, key("10.96.0.10:80", SCTP)?);
    let added = [
        IpvsCommand::Add(server(web, "mh", FALLBACK | PORT_HASHED)),
        IpvsCommand::AddReal(web, real("10.1.0.2:8080", 1)?),
        IpvsCommand::AddReal(web, real("192.168.0.2:8080", 7)?),
        IpvsCommand::Add(server(web6, "rr", 0)),
        IpvsCommand::AddReal(web6, real("[fd01::2]:8080", 0)?),
        IpvsCommand::Add(server(dns, "lc", 0)),
        IpvsCommand::Add(server(sctp, "rr", 0)),
    ];
    ensure_done(ipvs, &added)?;
    ensure_saved(
        node,
        &[
            "-A --sctp-service 10.96.0.10:80 -s rr",
            "-A -t 10.96.0.10:80 -s mh -b mh-fallback,mh-port",
            "-A -t [fd96::10]:80 -s rr",
            "-A -u 10.96.0.10:53 -s lc",
            "-a -t 10.96.0.10:80 -r 10.1.0.2:8080 -m -w 1",
            "-a -t 10.96.0.10:80 -r 192.168.0.2:8080 -m -w 7",
            "-a -t [fd96::10]:80 -r [fd01::2]:8080 -m -w 0",
        ],
    )?;
    let mut listed = ipvs.servers()?;
    listed.sort_unstable();
    let mut wanted: Vec<_> = added.iter().filter_map(of_server).cloned().collect();
    wanted.sort_unstable();
    ensure!(listed == wanted, "{listed:?}");
    let quiet = |real| ObservedServer { real, translates: true, active: 0, inactive: 0 };
    let mut reals = ipvs.real_servers(&web)?;
    reals.sort_unstable_by_key(|observed| observed.real.at);
    let wanted = [quiet(real("10.1.0.2:8080", 1)?), quiet(real("192.168.0.2:8080", 7)?)];
    ensure!(reals == wanted, "{reals:?}");
    let changed = [
        IpvsCommand::Change(server(web, "sh", 0)),
        IpvsCommand::ChangeReal(web, real("10.1.0.2:8080", 0)?),
        IpvsCommand::RemoveReal(web, "192.168.0.2:8080".parse()?),
        IpvsCommand::Remove(web6),
        IpvsCommand::Remove(dns),
        IpvsCommand::Remove(sctp),
    ];
    ensure_done(ipvs, &changed)?;
    let left = ["-A -t 10.96.0.10:80 -s sh", "-a -t 10.96.0.10:80 -r 10.1.0.2:8080 -m -w 0"];
    ensure_saved(node, &left)
}

fn of_server(command: &IpvsCommand) -> Option<&VirtualServer> {
    match command {
        IpvsCommand::Add(server) | IpvsCommand::Change(server) => Some(server),
        IpvsCommand::Remove(_)
        | IpvsCommand::AddReal(..)
        | IpvsCommand::ChangeReal(..)
        | IpvsCommand::RemoveReal(..) => None,
    }
}

/// Each refusal names the command that it is for, and all other commands are carried out.
fn refusals(node: &Netns, ipvs: &mut Ipvs) -> Result<()> {
    let (web, gone) = (key("10.96.0.10:80", TCP)?, key("10.96.0.99:80", TCP)?);
    let commands = [
        IpvsCommand::Add(server(web, "rr", 0)),
        IpvsCommand::Add(server(key("10.96.0.11:80", TCP)?, "nonesuch", 0)),
        IpvsCommand::AddReal(web, real("10.1.0.3:8080", 1)?),
        IpvsCommand::AddReal(web, real("10.1.0.3:8080", 1)?),
        IpvsCommand::ChangeReal(web, real("10.1.0.4:8080", 1)?),
        IpvsCommand::Change(server(gone, "rr", 0)),
        IpvsCommand::Remove(gone),
    ];
    let refused = ipvs.apply(&commands)?;
    let wanted = [
        (0, Errno::EEXIST),
        (1, Errno::ENOENT),
        (3, Errno::EEXIST),
        (4, Errno::ENOENT),
        (5, Errno::ESRCH),
        (6, Errno::ESRCH),
    ];
    let wanted = wanted.map(|(command, errno)| RejectedCommand { command, errno });
    ensure!(refused == wanted, "{refused:?}");
    ensure!(ipvs.real_servers(&gone)?.is_empty(), "a server that is not there has real servers");
    ensure_saved(
        node,
        &[
            "-A -t 10.96.0.10:80 -s sh",
            "-a -t 10.96.0.10:80 -r 10.1.0.2:8080 -m -w 0",
            "-a -t 10.96.0.10:80 -r 10.1.0.3:8080 -m -w 1",
        ],
    )
}

/// What this driver never makes itself is recognised …
fn foreign_servers(node: &Netns, ipvs: &mut Ipvs) -> Result<()> {
    let at = "10.96.0.12:80";
    node.feed(
        "ipvsadm",
        &["--restore"],
        &format!("-A -f 7 -s rr\n-A -t {at} -s rr -p 60\n-a -t {at} -r 10.1.0.5 -g -w 1\n"),
    )?;
    let servers = ipvs.servers()?;
    ensure!(servers.len() == 2, "{servers:?}");
    let theirs = servers.iter().find(|server| server.key.at.to_string() == at);
    ensure!(theirs.context("theirs")?.flags != 0, "persistence does not show: {servers:?}");
    let reals = ipvs.real_servers(&key(at, TCP)?)?;
    ensure!(matches!(&reals[..], [one] if !one.translates), "{reals:?}");
    // … and overwritten.
    ensure_done(ipvs, &[IpvsCommand::Change(server(key(at, TCP)?, "rr", 0))])?;
    ensure!(saved(node)?.contains(&format!("-A -t {at} -s rr")), "{:?}", saved(node)?);
    Ok(())
}

fn timeouts(node: &Netns, ipvs: &mut Ipvs) -> Result<()> {
    let wanted = Timeouts {
        tcp: Duration::from_secs(86_400),
        tcp_fin: Duration::from_secs(121),
        udp: Duration::from_secs(301),
    };
    ensure!(ipvs.timeouts()? != wanted, "{:?}", ipvs.timeouts()?);
    ipvs.set_timeouts(&wanted)?;
    ensure!(ipvs.timeouts()? == wanted, "{:?}", ipvs.timeouts()?);
    let output = node.output("ipvsadm", &["--list", "--timeout"])?;
    ensure!(output.contains("86400 121 301"), "{output}");
    Ok(())
}

fn many(node: &Netns, ipvs: &mut Ipvs) -> Result<()> {
    let mut commands = Vec::new();
    for port in 1..=MANY {
        let one = ServerKey { at: SocketAddr::from(([10, 96, 1, 1], port)), protocol: TCP };
        commands.push(IpvsCommand::Add(server(one, "rr", 0)));
        for pod in 1..=2 {
            let at = SocketAddr::from(([10, 1, 1, pod], port));
            commands.push(IpvsCommand::AddReal(one, RealServer { at, weight: 1 }));
        }
    }
    // The last command, in the last batch, is refused.
    commands.push(commands[0].clone());
    let refused = ipvs.apply(&commands)?;
    let wanted = [RejectedCommand { command: commands.len() - 1, errno: Errno::EEXIST }];
    ensure!(refused == wanted, "{refused:?}");
    let mut ports: Vec<u16> = ipvs.servers()?.iter().map(|server| server.key.at.port()).collect();
    ports.sort_unstable();
    ensure!(ports == (1..=MANY).collect::<Vec<_>>(), "{ports:?}");
    let lines = saved(node)?.len();
    ensure!(lines == 3 * usize::from(MANY), "{lines} lines");
    Ok(())
}
