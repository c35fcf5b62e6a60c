//! The quick start: a node with pods whose addresses no CIDR covers, real connections through the
//! real agent, and a page for people that says what became of each connection and why.

mod changes;
mod node;
mod page;
mod policy;
mod rows;
pub mod serve;

use std::process::ExitCode;

use anyhow::Result;

pub use node::remove_kept;

use node::QuickstartNode;
use page::Page;

/// Makes the node, sends the connections, makes the changes, and prints the results. With `keep`
/// the node is left up. Succeeds if everything was as expected.
pub fn run(keep: bool) -> Result<ExitCode> {
    let mut page = Page::default();
    page.title("A node of its own, in network namespaces");
    let mut node = QuickstartNode::up(keep)?;
    node.introduce(&mut page)?;
    node.check(&mut page)?;
    page.title("Connections");
    rows::run(&node, &mut page)?;
    page.title("One NetworkPolicy at work");
    policy::run(&node, &mut page)?;
    page.title("Changes while it runs");
    changes::run(&mut node, &mut page)?;
    page.verdict();
    if keep {
        node.leave(&mut page)?;
    }
    Ok(if page.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
