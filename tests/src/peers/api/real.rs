//! A real kube-apiserver with its etcd, from the folder that `KUBEBUILDER_ASSETS` names.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Api;
use super::kinds::path_of;
use super::tls::Authority;
use crate::eventually::observed;
use crate::node::netns::{Netns, checked};

/// A real server says that it is ready after some ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

const TOKEN: &str = "the-only-token";

/// The ranges that [`crate::node::fixture::service_ips`] are in.
const SERVICE_RANGES: &str = "172.30.0.0/16,fd00:172:30::/112";

/// The folder with `kube-apiserver` and `etcd`, where there is one.
pub fn assets() -> Option<PathBuf> {
    std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)
}

/// A real server. Dropping it ends it.
#[derive(Debug)]
pub struct RealServer {
    assets: PathBuf,
    address: SocketAddr,
    folder: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    processes: Vec<Child>,
}

impl RealServer {
    /// Starts etcd and the server at `address`, which `netns` has, and waits until it is ready.
    pub fn start(assets: &Path, netns: &Netns, address: SocketAddr, folder: &Path) -> Result<Self> {
        let authority = Authority::new()?;
        authority.write_kubeconfig(folder, &format!("https://{address}"), TOKEN)?;
        let identity = authority.identity(address.ip())?;
        let file = |name: &str, text: String| -> Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.display().to_string())
        };
        let certificate = file("server.crt", identity.certificate.pem())?;
        let key = file("server.key", identity.key.serialize_pem())?;
        let accounts = rcgen::KeyPair::generate()?;
        let signing = file("accounts.key", accounts.serialize_pem())?;
        // The flag would take a private key too, but not as PKCS #8 has one of an elliptic curve.
        let checking = file("accounts.pub", accounts.public_key_pem())?;
        let tokens = file("tokens.csv", format!("{TOKEN},agent,agent,\"system:masters\"\n"))?;
        let etcd = [
            format!("--data-dir={}", folder.join("etcd").display()),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ];
        let server = [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--bind-address={}", address.ip()),
            format!("--advertise-address={}", address.ip()),
            format!("--secure-port={}", address.port()),
            format!("--cert-dir={}", folder.display()),
            format!("--tls-cert-file={certificate}"),
            format!("--tls-private-key-file={key}"),
            format!("--token-auth-file={tokens}"),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={checking}"),
            format!("--service-account-signing-key-file={signing}"),
            format!("--service-cluster-ip-range={SERVICE_RANGES}"),
        ];
        let mut real = Self {
            assets: assets.to_owned(),
            address,
            folder: folder.to_owned(),
            kubeconfig: folder.join("kubeconfig"),
            namespace: netns.name().to_owned(),
            processes: Vec::new(),
        };
        real.spawn(netns, "etcd", &etcd)?;
        real.spawn(netns, "kube-apiserver", &server)?;
        real.wait_ready()?;
        Ok(real)
    }

    fn spawn(&mut self, netns: &Netns, program: &str, flags: &[String]) -> Result<()> {
        let log = fs::File::create(self.folder.join(format!("{program}.log")))?;
        let mut command = Command::new(self.assets.join(program));
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = netns.run(|| command.spawn())?;
        self.processes.push(child.with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        // It makes this service, and its namespace, a while after it says that it is ready.
        const MADE: [&str; 3] = [
            "/readyz",
            "/api/v1/namespaces/default/services/kubernetes",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        ];
        let log = self.folder.join("kube-apiserver.log");
        let made = || -> Result<Result<()>> {
            let made = MADE.iter().try_for_each(|path| self.ask("GET", path, None));
            for process in &mut self.processes {
                ensure!(made.is_ok() || process.try_wait()?.is_none(), "it has ended");
            }
            Ok(made)
        };
        observed("ready", PATIENCE, made, Result::is_ok)
            .with_context(|| fs::read_to_string(&log).unwrap_or_default())?
    }

    /// Asks by curl; `body` is its content type and text.
    fn ask(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, "curl", "--silent", "--show-error"]);
        command.args(["--fail-with-body", "--max-time", "20", "--request", method, "--cacert"]);
        command.arg(self.folder.join("ca.crt"));
        command.args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
        if let Some((kind, body)) = body {
            command.args(["--header", &format!("Content-Type: {kind}")]);
            command.args(["--data-binary", &body.to_string()]);
        }
        command.arg(format!("{}{path}", self.url()));
        checked(&mut command).map(drop)
    }
}

impl Api for RealServer {
    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn put(&self, object: &Value) -> Result<()> {
        let path = path_of(object)?;
        let mut applied = object.clone();
        let status = applied.as_object_mut().and_then(|fields| fields.remove("status"));
        let apply = Some(("application/apply-patch+yaml", &applied));
        self.ask("PATCH", &format!("{path}?fieldManager=tests&force=true"), apply)?;
        let Some(status) = status else { return Ok(()) };
        let merge = Some(("application/merge-patch+json", &json!({ "status": status })));
        self.ask("PATCH", &format!("{path}/status"), merge)
    }

    fn delete(&self, object: &Value) -> Result<()> {
        self.ask("DELETE", &path_of(object)?, None)
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
