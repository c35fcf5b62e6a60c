//! Where endpoints sit, how one is chosen, what a change changes, and what the kernel makes of it.

mod affinity;
mod choice;
mod kernel;
mod leaving;
mod ranges;
mod slots;
mod tables;

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Does this in a namespace of its own, to which these addresses are routed.
fn with_addresses_routed_here(addresses: &'static str, work: impl FnOnce() + Send + 'static) {
    let alone = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let route = format!("route add local {addresses} dev lo");
        for command in ["link set lo up", &route] {
            #[expect(clippy::disallowed_methods, reason = "the judge is a program")]
            let done = Command::new("ip").args(command.split(' ')).status().unwrap();
            assert!(done.success(), "{command}");
        }
        work();
    });
    alone.join().unwrap();
}
