use super::*;
use denizen_model::Listing;

mod documents;
mod property;
mod watched;

/// A folder in which a test writes its files.
struct TestFolder {
    folder: tempfile::TempDir,
}

impl TestFolder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    #[expect(clippy::disallowed_methods, reason = "a test writes as any editor would")]
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    fn config(&self) -> ManifestsConfig {
        ManifestsConfig {
            folder: self.folder.path().to_owned(),
            node_name: "n1".to_owned(),
            features: Features { services: true, network_policy: true, other_nodes: false },
        }
    }

    /// What a fresh read yields.
    fn fresh(&self) -> (Vec<Event>, Vec<String>) {
        read(&self.config()).unwrap()
    }
}

/// Everything was listed.
fn listed() -> Vec<Event> {
    Listing::SERVICES
        .into_iter()
        .chain(Listing::FIREWALL)
        .filter(|listing| *listing != Listing::Addresses)
        .map(Event::Listed)
        .collect()
}

/// A service with one cluster IP.
fn service(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: d}}\n\
         spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n"
    )
}

/// The names of the services in these events, and their cluster IPs; `-` for deletions.
fn services(events: &[Event]) -> Vec<String> {
    let mut found = Vec::new();
    for event in events {
        if let Event::Service(name, service) = event {
            let address = service.as_ref().map(|service| service.cluster_ips[0].to_string());
            found.push(format!("{name} {}", address.as_deref().unwrap_or("-")));
        }
    }
    found
}
