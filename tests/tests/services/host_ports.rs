//! Host ports, as packets meet them, with every backend and beside another program that serves
//! services. The statements are in `denizen_tests::cases::host_ports`; a guest plays them with ipvs
//! (`tests/src/bin/guest/ipvs/host_ports.rs`).

mod portmap;

use anyhow::{Context as _, Result};
use denizen_tests::cases::host_ports::context::{Context, Services};
use denizen_tests::cases::host_ports::{forward, place, policy, precedence, reach, removal};
use denizen_tests::oracle::flows::table::Backend;

const NFTABLES: Services = Services::By(Backend::Nftables);
const ON: &str = "--host-ports=on";

/// The statement holds on a node of its own, whoever serves services.
fn holds_always(label: &str, flags: &[&str], statement: fn(&Context) -> Result<()>) -> Result<()> {
    holds(label, &Services::ALL, flags, statement)
}

fn holds(
    label: &str,
    all: &[Services],
    flags: &[&str],
    statement: fn(&Context) -> Result<()>,
) -> Result<()> {
    all.iter().try_for_each(|services| {
        let context = Context::with(label, *services, flags, |_| Ok(Vec::new()))?;
        statement(&context).with_context(|| format!("{services:?}"))
    })
}

/// The same on a node with services.
fn holds_beside_services(label: &str, statement: fn(&Context) -> Result<()>) -> Result<()> {
    let flags = [ON, "--nodeport-addresses=primary"];
    Services::SERVED.iter().try_for_each(|services| {
        let context = Context::with(label, *services, &flags, precedence::services)?;
        statement(&context).with_context(|| format!("{services:?}"))
    })
}

#[test]
fn everybody_reaches_the_pod_as_himself() -> Result<()> {
    holds_always("hp-reach", &[ON], reach::everybody_reaches_the_pod_as_himself)
}

#[test]
fn the_source_port_is_kept() -> Result<()> {
    holds_always("hp-port", &[ON], reach::the_source_port_is_kept)
}

#[test]
fn a_pod_reaches_itself() -> Result<()> {
    holds_always("hp-self", &[ON], reach::a_pod_reaches_itself)
}

#[test]
fn the_node_reaches_it_on_localhost() -> Result<()> {
    holds_always("hp-lo", &[ON], reach::the_node_reaches_it_on_localhost)
}

#[test]
fn localhost_stays_the_nodes_own_if_asked() -> Result<()> {
    let flags = ["--host-ports=without-localhost"];
    holds_always("hp-nolo", &flags, reach::localhost_stays_the_nodes_own)
}

#[test]
fn neighbours_are_kept_out_of_localhost() -> Result<()> {
    holds_always("hp-martian", &[ON], reach::neighbours_are_kept_out_of_localhost)
}

/// Not beside legacy iptables, whose rules nobody can follow.
#[test]
fn a_trace_follows_a_packet_to_the_pod() -> Result<()> {
    let traced = [NFTABLES, Services::By(Backend::IptablesNft), Services::Off];
    holds("hp-trace", &traced, &[ON], reach::a_trace_follows_a_packet_to_the_pod)
}

#[test]
fn without_ports_there_is_no_rule() -> Result<()> {
    holds("hp-none", &[NFTABLES], &[ON], reach::without_ports_there_is_no_rule)
}

#[test]
fn a_host_ip_is_served_there_alone() -> Result<()> {
    holds_always("hp-ip", &[ON], place::a_host_ip_is_served_there_alone)
}

#[test]
fn an_address_that_comes_later_is_served_soon() -> Result<()> {
    let off = [Services::Off];
    holds("hp-later", &off, &[ON], place::an_address_that_comes_later_is_served_soon)
}

#[test]
fn a_host_ip_of_others_leaves_them_alone() -> Result<()> {
    holds_always("hp-transit", &[ON], place::a_host_ip_of_others_leaves_them_alone)
}

#[test]
fn the_unspecified_addresses_stand_for_their_family() -> Result<()> {
    holds_always("hp-any", &[ON], place::the_unspecified_addresses_stand_for_their_family)
}

#[test]
fn each_protocol_and_host_ip_has_its_own_pod() -> Result<()> {
    holds_always("hp-each", &[ON], place::each_protocol_and_host_ip_has_its_own_pod)
}

#[test]
fn the_addresses_of_services_are_no_host_ports() -> Result<()> {
    let statement = precedence::the_addresses_of_services_are_no_host_ports;
    holds_beside_services("hp-service", statement)
}

#[test]
fn the_addresses_of_kube_ipvs_are_no_host_ports() -> Result<()> {
    let off = [Services::Off];
    holds("hp-ipvs0", &off, &[ON], precedence::the_addresses_of_kube_ipvs_are_no_host_ports)
}

#[test]
fn a_node_port_comes_first() -> Result<()> {
    holds_beside_services("hp-node", precedence::a_node_port_comes_first)
}

#[test]
fn a_policy_judges_the_client() -> Result<()> {
    let flags = [ON, "--network-policy=on"];
    holds_always("hp-policy", &flags, policy::a_policy_judges_the_client)
}

#[test]
fn a_firewall_that_drops_is_opened_for_host_ports_alone() -> Result<()> {
    for services in Services::ALL {
        let flags = [ON, "--open-forward"];
        let context = Context::with("hp-fw", services, &flags, |fixture| {
            forward::drop_what_is_forwarded(&fixture.cluster.world.node)?;
            Ok(Vec::new())
        })?;
        forward::a_firewall_that_drops_is_opened_for_host_ports_alone(&context)
            .with_context(|| format!("{services:?}"))?;
    }
    Ok(())
}

#[test]
fn the_first_syn_after_an_add_is_answered() -> Result<()> {
    holds("hp-first", &[NFTABLES, Services::Off], &[ON], |context| {
        removal::the_first_syn_after_an_add_is_answered(context, 20)
    })
}

#[test]
fn no_first_syn_of_a_thousand_adds_is_lost() -> Result<()> {
    let mut context = Context::new("hp-1000", NFTABLES)?;
    removal::no_first_syn_of_many_adds_is_lost(&mut context, 1000, 100)
}

#[test]
fn a_udp_sender_is_led_to_the_new_pod() -> Result<()> {
    holds_always("hp-udp", &[ON], removal::a_udp_sender_is_led_to_the_new_pod)
}

#[test]
fn the_newest_pod_has_the_port_in_any_order() -> Result<()> {
    holds("hp-order", &[Services::Off], &[ON], |context| {
        removal::the_newest_pod_has_the_port_in_any_order(context, 60)
    })
}

#[test]
fn an_address_that_is_used_again_has_only_its_own_ports() -> Result<()> {
    let statement = removal::an_address_that_is_used_again_has_only_its_own_ports;
    holds_always("hp-again", &[ON], statement)
}
