//! A real kube-apiserver with its etcd, from the folder that `KUBEBUILDER_ASSETS` names.

use std::fmt::Write as _;
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
use crate::conf::documents;
use crate::eventually::observed;
use crate::node::netns::{Netns, checked};

/// A real server says that it is ready after some ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who puts objects there.
const ADMIN: &str = "the-admins-token";
const TOKEN: &str = "the-agents-token";
/// Who the kubeconfig file is for. It has the rights that `conf/` gives it.
pub const AGENT: &str = "system:serviceaccount:kube-system:denizen";

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
    is_old: bool,
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
        let tokens = format!("{ADMIN},admin,admin,\"system:masters\"\n{TOKEN},{AGENT},agent\n");
        let tokens = file("tokens.csv", tokens)?;
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
            // Nobody makes service accounts, which pods need otherwise.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        let is_old = is_old(&release(&assets.join("kube-apiserver"))?);
        let gates = is_old.then(|| "--feature-gates=IPv6DualStack=true".to_owned());
        let mut real = Self {
            assets: assets.to_owned(),
            address,
            folder: folder.to_owned(),
            kubeconfig: folder.join("kubeconfig"),
            namespace: netns.name().to_owned(),
            is_old,
            processes: Vec::new(),
        };
        real.spawn(netns, "etcd", &etcd)?;
        real.spawn(netns, "kube-apiserver", server.iter().chain(&gates))?;
        real.wait_ready()?;
        let mut roles = documents("kubernetes/rbac.yaml")?;
        roles.retain(|object| object["kind"] != "ServiceAccount");
        real.put_roles(&roles)?;
        Ok(real)
    }

    /// Puts ClusterRoles and ClusterRoleBindings there.
    pub fn put_roles(&self, roles: &[Value]) -> Result<()> {
        let requests = roles.iter().map(|role| Ok(ApiRequest::put(&path_of_role(role)?, role)));
        self.ask(&requests.collect::<Result<Vec<_>>>()?.concat())
    }

    /// The version in which it has EndpointSlices.
    pub fn slices(&self) -> &'static str {
        if self.is_old { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" }
    }

    fn spawn<'f>(
        &mut self,
        netns: &Netns,
        program: &str,
        flags: impl IntoIterator<Item = &'f String>,
    ) -> Result<()> {
        let log = fs::File::create(self.folder.join(format!("{program}.log")))?;
        let mut command = Command::new(self.assets.join(program));
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = netns.run(|| command.spawn())?;
        self.processes.push(child.with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        // It makes this service, and its namespace, a while after it says that it is ready.
        let made = [
            "/readyz".to_owned(),
            "/api/v1/namespaces/default/services/kubernetes".to_owned(),
            format!("/apis/{}/namespaces/default/endpointslices/kubernetes", self.slices()),
        ];
        let made = made.map(|path| ApiRequest { method: "GET", path, body: None });
        let log = self.folder.join("kube-apiserver.log");
        let made = || -> Result<Result<()>> {
            let made = self.ask(&made);
            for process in &mut self.processes {
                ensure!(made.is_ok() || process.try_wait()?.is_none(), "it has ended");
            }
            Ok(made)
        };
        observed("ready", PATIENCE, made, Result::is_ok)
            .with_context(|| fs::read_to_string(&log).unwrap_or_default())?
    }

    /// Asks by curl, on one connection, until a request fails.
    fn ask(&self, requests: &[ApiRequest]) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = |name: &str| folder.path().join(name);
        let (config, answer) = (file("config"), file("answer"));
        let mut text = "fail-early\n".to_owned();
        for (number, ApiRequest { method, path, body }) in requests.iter().enumerate() {
            let separator = if number == 0 { "" } else { "next\n" };
            let authority = self.folder.join("ca.crt");
            write!(
                text,
                "{separator}silent\nshow-error\nfail-with-body\nmax-time = 20\n\
                 request = {method}\nurl = \"{}{path}\"\ncacert = \"{}\"\noutput = \"{}\"\n\
                 header = \"Authorization: Bearer {ADMIN}\"\n",
                self.url(),
                authority.display(),
                answer.display(),
            )?;
            if let Some((content_type, body)) = body {
                let file = file(&format!("body-{number}"));
                fs::write(&file, body.to_string())?;
                let file = file.display();
                writeln!(
                    text,
                    "header = \"Content-Type: {content_type}\"\ndata-binary = \"@{file}\""
                )?;
            }
        }
        fs::write(&config, text)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, "curl", "--config"]).arg(&config);
        let result = checked(&mut command).map(drop);
        result.with_context(|| fs::read_to_string(&answer).unwrap_or_default())
    }
}

/// What is asked.
#[derive(Debug, Clone)]
struct ApiRequest {
    method: &'static str,
    path: String,
    /// Its content type, and what it is.
    body: Option<(&'static str, Value)>,
}

impl ApiRequest {
    /// Those that put an object at this path.
    fn put(path: &str, object: &Value) -> Vec<Self> {
        let mut applied = object.clone();
        let status = applied.as_object_mut().and_then(|fields| fields.remove("status"));
        let patch = |path, content_type, body| Self {
            method: "PATCH",
            path,
            body: Some((content_type, body)),
        };
        let path_of_apply = format!("{path}?fieldManager=tests&force=true");
        let apply = patch(path_of_apply, "application/apply-patch+yaml", applied);
        let status = status.map(|status| {
            let status = json!({ "status": status });
            patch(format!("{path}/status"), "application/merge-patch+json", status)
        });
        [apply].into_iter().chain(status).collect()
    }
}

/// The path of a ClusterRole or ClusterRoleBinding.
fn path_of_role(role: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no role");
    let (version, kind) = (text(&role["apiVersion"])?, text(&role["kind"])?.to_lowercase());
    Ok(format!("/apis/{version}/{kind}s/{}", text(&role["metadata"]["name"])?))
}

/// The release of a Kubernetes program, such as `1.36.0`.
pub fn release(program: &Path) -> Result<String> {
    let output = checked(Command::new(program).arg("--version"))?;
    let text = String::from_utf8(output.stdout)?;
    let release = text.trim().strip_prefix("Kubernetes v");
    Ok(release.with_context(|| format!("no release: {text}"))?.to_owned())
}

/// Whether a server lacks `discovery.k8s.io/v1`, and has IPv6 only with a feature gate.
fn is_old(release: &str) -> bool {
    let minor = release.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    minor.is_some_and(|minor| minor < 21)
}

impl Api for RealServer {
    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    fn put(&self, object: &Value) -> Result<()> {
        self.put_all(std::slice::from_ref(object))
    }

    fn delete(&self, object: &Value) -> Result<()> {
        self.ask(&[ApiRequest { method: "DELETE", path: path_of(object)?, body: None }])
    }

    fn put_all(&self, objects: &[Value]) -> Result<()> {
        let requests = objects.iter().map(|object| Ok(ApiRequest::put(&path_of(object)?, object)));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        self.ask(&requests.into_iter().flatten().collect::<Vec<_>>())
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
