//! Real chains: Debian's interface plugins in front of ours, in network namespaces.

use std::path::Path;

use denizen_shared::state::{Attachment, AttachmentId, RunDir, State};
use denizen_tests::cni::{Call, Chain, Namespace};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Something on the node's side that a chain is tried on.
struct Rig {
    dir: TempDir,
    node: Namespace,
    pod: Namespace,
}

impl Rig {
    fn new() -> Rig {
        // A tmpfs, as the real run directory.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        Rig {
            dir,
            node: Namespace::new(),
            pod: Namespace::new(),
        }
    }

    fn run_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("denizen")
    }

    fn state(&self) -> State {
        RunDir::open(&self.run_dir()).unwrap().read().unwrap().unwrap()
    }

    fn record(&self, call: &Call) -> Attachment {
        self.state().attachments[&AttachmentId::new(&call.container, &call.interface)].clone()
    }

    /// `first` and denizen, in a network `name` with addresses of `ranges`.
    fn chain(&self, version: &'static str, name: &str, mut first: Value, ranges: &[&str]) -> Chain {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|subnet| json!([{ "subnet": subnet }]))
            .collect();
        first["ipam"] =
            json!({ "type": "host-local", "ranges": ranges, "dataDir": self.dir.path().join("ipam") });
        let ours = json!({ "type": "denizen", "runDir": self.run_dir() });
        Chain {
            name: name.to_owned(),
            version,
            plugins: vec![first, ours],
        }
    }
}

#[test]
fn smoke() {
    let rig = Rig::new();
    let chain = rig.chain(
        "1.0.0",
        "pods",
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true}),
        &["10.85.0.0/24", "fd00:85::/64"],
    );
    let call = Call::new("web-0", &rig.pod);
    let result = chain.add(&rig.node, &call).unwrap();
    eprintln!("{result:#}\n{:#?}", rig.record(&call));
    eprintln!(
        "{}",
        std::fs::File::open(rig.run_dir().join("pods.json"))
            .map(|f| std::io::read_to_string(f).unwrap())
            .unwrap()
    );
    chain.del(&rig.node, &call, Some(&result)).unwrap();
    let _ = Path::new("/");
}
