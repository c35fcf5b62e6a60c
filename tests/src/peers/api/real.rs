//! A real kube-apiserver with its etcd, from the folder that `KUBEBUILDER_ASSETS` names. Its audit
//! log contains the agent's requests.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::behaviour::query_of;
use super::kinds::path_of;
use super::tls::Authority;
use super::upstream::Upstream;
use super::{Api, ReceivedRequest};
use crate::conf::documents;
use crate::eventually::observed;
use crate::node::netns::{Netns, checked};

/// A real server takes some ten seconds until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The token of the client that puts objects.
const ADMIN: &str = "the-admins-token";
/// The agent's token.
pub(super) const AGENTS_TOKEN: &str = "the-agents-token";
/// The user that the kubeconfig file is for. It has the permissions that `conf/` gives it.
pub const AGENT: &str = "system:serviceaccount:kube-system:denizen";

/// The ranges that [`crate::node::fixture::service_ips`] are in.
const SERVICE_RANGES: &str = "172.30.0.0/16,fd00:172:30::/112";

/// The audit log's name in the server's folder.
const AUDIT_LOG: &str = "audit.log";

/// The folder with `kube-apiserver` and `etcd`, if there is one.
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
    authority: Authority,
    namespace: String,
    is_old: bool,
    flags: Vec<String>,
    /// Both processes, while they run.
    etcd: Option<Child>,
    server: Option<Child>,
}

impl RealServer {
    /// Starts etcd and the server at `address`, which `netns` has, and waits until it is ready.
    pub fn start(assets: &Path, netns: &Netns, address: SocketAddr, folder: &Path) -> Result<Self> {
        let authority = Authority::new()?;
        authority.write_kubeconfig(folder, &format!("https://{address}"), AGENTS_TOKEN)?;
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
        // The flag would also take a private key, but not an elliptic-curve key in PKCS #8.
        let checking = file("accounts.pub", accounts.public_key_pem())?;
        let tokens =
            format!("{ADMIN},admin,admin,\"system:masters\"\n{AGENTS_TOKEN},{AGENT},agent\n");
        let tokens = file("tokens.csv", tokens)?;
        let etcd = [
            format!("--data-dir={}", folder.join("etcd").display()),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ];
        let audited = file("audit.yaml", audit_policy().to_string())?;
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
            format!("--audit-policy-file={audited}"),
            format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()),
            // Nobody makes service accounts, which pods need otherwise.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        let is_old = is_old(&release(&assets.join("kube-apiserver"))?);
        let gates = is_old.then(|| "--feature-gates=IPv6DualStack=true".to_owned());
        let flags = server.into_iter().chain(gates).collect();
        let mut real = Self {
            assets: assets.to_owned(),
            address,
            folder: folder.to_owned(),
            kubeconfig: folder.join("kubeconfig"),
            authority,
            namespace: netns.name().to_owned(),
            is_old,
            flags,
            etcd: None,
            server: None,
        };
        real.etcd = Some(real.spawn(netns, "etcd", &etcd)?);
        real.go_on(netns)?;
        let mut roles = documents("kubernetes/rbac.yaml")?;
        roles.retain(|object| object["kind"] != "ServiceAccount");
        real.put_roles(&roles)?;
        Ok(real)
    }

    /// Puts ClusterRoles and ClusterRoleBindings.
    pub fn put_roles(&self, roles: &[Value]) -> Result<()> {
        let requests = roles.iter().map(|role| Ok(ApiRequest::put(&path_of_role(role)?, role)));
        self.ask(&requests.collect::<Result<Vec<_>>>()?.concat()).map(drop)
    }

    /// How the tests' own server connects to this one.
    pub(super) fn upstream(&self) -> Result<Upstream> {
        Ok(Upstream::new(self.address, self.authority.client_config()?))
    }

    /// The newest API version in which it serves EndpointSlices.
    pub fn slices(&self) -> &'static str {
        if self.is_old { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" }
    }

    fn spawn(&self, netns: &Netns, program: &str, flags: &[String]) -> Result<Child> {
        let log = fs::File::create(self.folder.join(format!("{program}.log")))?;
        let mut command = Command::new(self.assets.join(program));
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = netns.run(|| command.spawn())?;
        child.with_context(|| format!("cannot start {program}"))
    }

    fn wait_ready(&mut self) -> Result<()> {
        // The server makes this Service, and its namespace, a while after it reports to be ready.
        let made = [
            "/readyz".to_owned(),
            "/api/v1/namespaces/default/services/kubernetes".to_owned(),
            format!("/apis/{}/namespaces/default/endpointslices/kubernetes", self.slices()),
        ];
        let made = made.map(|path| ApiRequest { method: "GET", path, body: None });
        let log = self.folder.join("kube-apiserver.log");
        let (mut etcd, mut server) = (self.etcd.take(), self.server.take());
        let made = || -> Result<Result<String>> {
            let made = self.ask(&made);
            for process in [&mut etcd, &mut server].into_iter().flatten() {
                ensure!(made.is_ok() || process.try_wait()?.is_none(), "it has ended");
            }
            Ok(made)
        };
        let ready = observed("ready", START_TIMEOUT, made, Result::is_ok);
        (self.etcd, self.server) = (etcd, server);
        ready.with_context(|| fs::read_to_string(&log).unwrap_or_default())?.map(drop)
    }

    /// Sends requests by curl, on one connection, until one fails. Returns the last answer.
    fn ask(&self, requests: &[ApiRequest]) -> Result<String> {
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
        let result = checked(&mut command);
        let answer = fs::read_to_string(&answer).unwrap_or_default();
        result.with_context(|| answer.clone()).map(|_| answer)
    }
}

/// The path of ClusterNetworkPolicies.
const CLUSTER_POLICIES: &str = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";

/// A CustomResourceDefinition of ClusterNetworkPolicies without any validation.
fn tiers_definition() -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "clusternetworkpolicies.policy.networking.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, a test's" },
        },
        "spec": {
            "group": "policy.networking.k8s.io", "scope": "Cluster",
            "names": { "kind": "ClusterNetworkPolicy", "plural": "clusternetworkpolicies" },
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

/// Records all requests of the agent, and nothing else.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "rules": [{ "level": "Metadata", "users": [AGENT] }, { "level": "None" }],
    })
}

/// The requests in an audit log, in their order. The log has several events for each.
fn audited(log: &str) -> Result<Vec<ReceivedRequest>> {
    let (now, clock) = (Instant::now(), Timestamp::now());
    let mut numbers = HashMap::new();
    let mut requests: Vec<ReceivedRequest> = Vec::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).context("the audit log")?;
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let number = *numbers.entry(text("auditID").to_owned()).or_insert(requests.len());
        if number == requests.len() {
            let uri = text("requestURI");
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let begun: Timestamp = text("requestReceivedTimestamp").parse()?;
            let ago = clock.duration_since(begun).try_into().unwrap_or_default();
            requests.push(ReceivedRequest {
                method: match text("verb") {
                    "get" | "list" | "watch" => "GET".to_owned(),
                    other => other.to_uppercase(),
                },
                path: path.to_owned(),
                query: query_of(query),
                user_agent: text("userAgent").to_owned(),
                // The audit log contains none of these.
                protobuf: false,
                metadata_only: false,
                gzip: false,
                connection: None,
                at: now.checked_sub(ago).context("before this machine started")?,
                status: 0,
            });
        }
        if let Some(code) = event["responseStatus"]["code"].as_u64() {
            requests[number].status = u16::try_from(code)?;
        }
    }
    Ok(requests)
}

/// A request.
#[derive(Debug, Clone)]
struct ApiRequest {
    method: &'static str,
    path: String,
    /// The content type and the body.
    body: Option<(&'static str, Value)>,
}

impl ApiRequest {
    /// The requests that put an object at this path.
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
        self.end_pod(object, 0)
    }

    fn end_pod(&self, pod: &Value, grace: u32) -> Result<()> {
        let path = format!("{}?gracePeriodSeconds={grace}", path_of(pod)?);
        self.ask(&[ApiRequest { method: "DELETE", path, body: None }]).map(drop)
    }

    fn uid(&self, object: &Value) -> Result<String> {
        let request = ApiRequest { method: "GET", path: path_of(object)?, body: None };
        let found: Value = serde_json::from_str(&self.ask(&[request])?)?;
        found["metadata"]["uid"].as_str().map(str::to_owned).context("it has no UID")
    }

    fn agent_requests(&self) -> Result<Vec<ReceivedRequest>> {
        let log = fs::read_to_string(self.folder.join(AUDIT_LOG)).context("the audit log")?;
        // The last line may be half written.
        audited(&log[..log.rfind('\n').map_or(0, |end| end + 1)])
    }

    fn define_tiers(&self) -> Result<()> {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definition = tiers_definition();
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        self.ask(&ApiRequest::put(&format!("{path}/{name}"), &definition))?;
        let served = [ApiRequest { method: "GET", path: CLUSTER_POLICIES.to_owned(), body: None }];
        observed("served", START_TIMEOUT, || Ok(self.ask(&served)), Result::is_ok)?.map(drop)
    }

    fn forbid_all(&self) -> Result<()> {
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/denizen".to_owned();
        self.ask(&[ApiRequest { method: "DELETE", path, body: None }]).map(drop)
    }

    fn stop(&mut self) {
        end(self.server.take());
    }

    fn go_on(&mut self, netns: &Netns) -> Result<()> {
        self.server = Some(self.spawn(netns, "kube-apiserver", &self.flags)?);
        self.wait_ready()
    }

    fn resumes(&self) -> bool {
        !self.is_old
    }

    fn has_slices(&self) -> bool {
        !self.is_old
    }

    fn put_all(&self, objects: &[Value]) -> Result<()> {
        let requests = objects.iter().map(|object| Ok(ApiRequest::put(&path_of(object)?, object)));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        self.ask(&requests.into_iter().flatten().collect::<Vec<_>>()).map(drop)
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        end(self.server.take());
        end(self.etcd.take());
    }
}

/// Ends a process, and waits until it has ended.
fn end(process: Option<Child>) {
    if let Some(mut process) = process {
        let _ = process.kill();
        let _ = process.wait();
    }
}
