//! A real kube-apiserver with its etcd, from the folder that `KUBEBUILDER_ASSETS` names.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Api;
use super::tls::Authority;
use crate::netns::{Netns, checked};

/// A real server says that it is ready after some ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

const TOKEN: &str = "the-only-token";

/// The ranges that [`crate::cast::service_ips`] are in.
const SERVICE_RANGES: &str = "172.30.0.0/16,fd00:172:30::/112";

/// The folder with `kube-apiserver`, `etcd` and `kubectl`, where there is one.
pub fn assets() -> Option<PathBuf> {
    std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from)
}

/// A real server. Dropping it ends it.
#[derive(Debug)]
pub struct RealServer {
    assets: PathBuf,
    address: SocketAddr,
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
        let accounts = file("accounts.key", rcgen::KeyPair::generate()?.serialize_pem())?;
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
            format!("--service-account-key-file={accounts}"),
            format!("--service-account-signing-key-file={accounts}"),
            format!("--service-cluster-ip-range={SERVICE_RANGES}"),
        ];
        let mut real = Self {
            assets: assets.to_owned(),
            address,
            kubeconfig: folder.join("kubeconfig"),
            namespace: netns.name().to_owned(),
            processes: Vec::new(),
        };
        real.spawn(netns, "etcd", &etcd, folder)?;
        real.spawn(netns, "kube-apiserver", &server, folder)?;
        real.wait_ready(folder)?;
        Ok(real)
    }

    fn spawn(&mut self, netns: &Netns, program: &str, flags: &[String], folder: &Path) -> Result<()> {
        let log = fs::File::create(folder.join(format!("{program}.log")))?;
        let mut command = Command::new(self.assets.join(program));
        command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = netns.run(|| command.spawn())?;
        self.processes
            .push(child.with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn wait_ready(&mut self, folder: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.kubectl(&["get", "--raw", "/readyz"], None).is_err() {
            let log = || fs::read_to_string(folder.join("kube-apiserver.log")).unwrap_or_default();
            ensure!(
                Instant::now() < deadline,
                "kube-apiserver is not ready:\n{}",
                log()
            );
            for process in &mut self.processes {
                ensure!(process.try_wait()?.is_none(), "it has ended:\n{}", log());
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn kubectl(&self, arguments: &[&str], object: Option<&Value>) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]);
        command
            .arg(self.assets.join("kubectl"))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        command.args(arguments);
        if let Some(object) = object {
            let path = self.kubeconfig.with_file_name("object.json");
            fs::write(&path, object.to_string())?;
            command.arg("--filename").arg(path);
        }
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
        self.kubectl(&["apply", "--server-side", "--force-conflicts"], Some(object))?;
        if object["status"].is_null() {
            return Ok(());
        }
        let status = json!({ "status": object["status"] }).to_string();
        let patch = [
            "patch",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status,
        ];
        self.kubectl(&patch, Some(object))
    }

    fn delete(&self, object: &Value) -> Result<()> {
        self.kubectl(&["delete", "--wait=false"], Some(object))
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
