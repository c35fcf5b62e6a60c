//! `cleanup` while BIRD still ends, as in an uninstallation that deletes both DaemonSets at once.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use anyhow::Result;
use denizen_tests::binary;
use denizen_tests::node::cluster::Cluster;
use serde_json::Value;

/// Routes that BIRD has learned, with the metric that it gives them.
const LEARNED: [(&str, &str); 2] = [("-4", "10.77.0.0/16"), ("-6", "fd00:77::/64")];

fn cleaned_up(cluster: &Cluster) -> Result<Output> {
    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    cleanup.args(["cleanup", "--run-dir"]).arg(cluster.run_dir());
    Ok(cluster.world.node.run(move || cleanup.output())??)
}

fn learned(cluster: &Cluster) -> Result<usize> {
    let mut count = 0;
    for (family, _) in LEARNED {
        let arguments = [family, "route", "show", "proto", "bird"];
        count += cluster.world.node.output("ip", &arguments)?.lines().count();
    }
    Ok(count)
}

/// BIRD leaves its routes when it ends, for its next start. A successful cleanup is not repeated.
#[test]
fn it_fails_until_birds_routes_can_be_removed() -> Result<()> {
    let cluster = Cluster::new("clean-bird", &Value::Null)?;
    let folder = cluster.run_dir().join("bird");
    fs::create_dir(&folder)?;
    let bird = UnixListener::bind(folder.join("bird.ctl"))?;
    for (_, range) in LEARNED {
        let route = format!("route add {range} dev eth0 proto bird metric 1190");
        cluster.world.node.ip(&route)?;
    }
    let refused = cleaned_up(&cluster)?;
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("BIRD is running"), "{printed}");
    assert_eq!(learned(&cluster)?, LEARNED.len(), "they are BIRD's as long as it runs");
    drop(bird);
    let done = cleaned_up(&cluster)?;
    assert!(done.status.success(), "{done:?}");
    assert_eq!(learned(&cluster)?, 0);
    assert!(!folder.exists(), "its folder is left");
    Ok(())
}
