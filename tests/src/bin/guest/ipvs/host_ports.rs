//! Host ports beside the backend ipvs, which routes services' addresses to this node: the same
//! statements hold as beside the other backends. Setting up a node takes an emulated processor
//! long, so one node runs all statements.

use std::time::Instant;

use anyhow::{Context as _, Result};
use denizen_tests::cases::host_ports::context::{Context, Services};
use denizen_tests::cases::host_ports::{forward, place, policy, precedence, reach, removal};
use denizen_tests::oracle::flows::table::Backend;

type Statement = (&'static str, fn(&Context) -> Result<()>);

/// With `--host-ports=on`, beside services.
const STATEMENTS: [Statement; 17] = [
    ("without ports there is no rule", reach::without_ports_there_is_no_rule),
    ("reach", reach::everybody_reaches_the_pod_as_himself),
    ("source port", reach::the_source_port_is_kept),
    ("hairpin", reach::a_pod_reaches_itself),
    ("localhost", reach::the_node_reaches_it_on_localhost),
    ("neighbours", reach::neighbours_are_kept_out_of_localhost),
    ("trace", reach::a_trace_follows_a_packet_to_the_pod),
    ("hostIP", place::a_host_ip_is_served_there_alone),
    ("new address", place::an_address_that_comes_later_is_served_soon),
    ("others' address", place::a_host_ip_of_others_leaves_them_alone),
    ("unspecified address", place::the_unspecified_addresses_stand_for_their_family),
    ("each protocol", place::each_protocol_and_host_ip_has_its_own_pod),
    ("services' addresses", precedence::the_addresses_of_services_are_no_host_ports),
    ("node port", precedence::a_node_port_comes_first),
    ("kube-ipvs0", precedence::the_addresses_of_kube_ipvs_are_no_host_ports),
    ("UDP", removal::a_udp_sender_is_led_to_the_new_pod),
    ("used again", removal::an_address_that_is_used_again_has_only_its_own_ports),
];

pub fn are_served() -> Result<()> {
    let ipvs = Services::By(Backend::Ipvs);
    let mut context = Context::with("ipvs-hp", ipvs, &["--host-ports=on"], precedence::services)?;
    context.agent.quiet();
    for (name, statement) in STATEMENTS {
        timed(name, || statement(&context))?;
    }
    timed("order", || removal::the_newest_pod_has_the_port_in_any_order(&context, 12))?;
    timed("first SYN", || removal::no_first_syn_of_many_adds_is_lost(&mut context, 10, 5))?;
    context.agent.quiet();
    timed("policy", || {
        context.restart_with(&["--host-ports=on", "--network-policy=on"])?;
        context.agent.quiet();
        policy::a_policy_judges_the_client(&context)
    })?;
    timed("firewall", || {
        forward::drop_what_is_forwarded(context.node())?;
        context.restart_with(&["--host-ports=without-localhost", "--open-forward"])?;
        context.agent.quiet();
        forward::a_firewall_that_drops_is_opened_for_host_ports_alone(&context)
    })?;
    timed("node's own localhost", || reach::localhost_stays_the_nodes_own(&context))
}

fn timed(name: &str, statement: impl FnOnce() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    statement().with_context(|| name.to_owned())?;
    println!("  {name}: after {:?}", started.elapsed());
    Ok(())
}
