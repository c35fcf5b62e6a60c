//! Runs a DaemonSet's pod as kubelet would: with exactly the user, the capabilities, the mounts and
//! the environment that the manifest grants.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::container::{
    Capabilities, ContainerConfig, ContainerMetadata, ContainerSecurity, ContainerState,
    ContainerStatus, ImageSpec, Int64, KeyValue, LinuxContainerConfig, Mount, NamespaceMode,
    NamespaceOption, Propagation, SecurityProfile,
};
use super::{Containerd, Cri, LinuxSandbox, SandboxConfig, SandboxSecurity, made};
use crate::agent::check::CheckReport;
use crate::conf::texts;
use crate::eventually::observed;

/// The paths that kubelet hides from containers that are not privileged (kubernetes,
/// `pkg/securitycontext/util.go`).
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// The paths that such containers can only read (same source).
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where kubelet mounts a service account's token into a pod that does not mount it itself.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long an init container may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs DaemonSets' pods on a node with containerd.
#[derive(Debug)]
pub struct Kubelet<'a> {
    /// The runtime.
    pub containerd: &'a Containerd,
    /// What `kubectl apply -k` sent to the API server.
    pub objects: Vec<Value>,
    /// The node's name.
    pub node_name: &'a str,
    /// Paths of the host that are elsewhere on this node.
    pub paths: BTreeMap<&'a str, PathBuf>,
    /// The folder that holds the service account's `token`, the cluster's `ca.crt` and the pod's
    /// `namespace`.
    pub account: PathBuf,
}

/// A DaemonSet's pod on this node. It ends with its containerd.
pub struct DaemonPod {
    cri: Cri,
    sandbox: String,
    containers: BTreeMap<String, String>,
    logs: PathBuf,
    /// The `/proc` of the runtime's process namespace, as this process reaches it.
    processes: PathBuf,
}

impl Kubelet<'_> {
    /// Runs the pod of the DaemonSet `name`: each init container to its end, then the other
    /// containers.
    pub fn run(&self, name: &str) -> Result<DaemonPod> {
        let spec = &self.object("DaemonSet", name)?["spec"]["template"]["spec"];
        let logs = made(&self.containerd.folder, &format!("logs-{name}"))?;
        let sandbox = sandbox(name, spec, &logs)?;
        let cri = self.containerd.cri()?;
        let mut pod = DaemonPod {
            sandbox: cri.run_sandbox_as(sandbox.clone())?,
            cri,
            containers: BTreeMap::new(),
            logs,
            processes: self.containerd.as_seen_here(Path::new("/proc")),
        };
        for container in list(&spec["initContainers"]) {
            let name = pod.start(self, spec, container, &sandbox)?;
            pod.wait_ended(&name)?;
        }
        for container in list(&spec["containers"]) {
            pod.start(self, spec, container, &sandbox)?;
        }
        Ok(pod)
    }

    fn object(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut objects = self.objects.iter();
        let found =
            objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.with_context(|| format!("no {kind} {name}"))
    }

    fn config(&self, spec: &Value, container: &Value) -> Result<ContainerConfig> {
        let name = text(&container["name"])?;
        let environment = self.environment(container)?;
        let expand = |word: String| {
            environment
                .iter()
                .fold(word, |word, (name, value)| word.replace(&format!("$({name})"), value))
        };
        let envs = environment
            .iter()
            .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() });
        Ok(ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.clone() }),
            image: Some(ImageSpec { image: text(&container["image"])? }),
            command: texts(&container["command"])?,
            args: texts(&container["args"])?.into_iter().map(expand).collect(),
            envs: envs.collect(),
            mounts: self.mounts(spec, container)?,
            log_path: format!("{name}.log"),
            linux: Some(LinuxContainerConfig {
                security_context: Some(security(spec, &container["securityContext"])?),
            }),
        })
    }

    fn environment(&self, container: &Value) -> Result<BTreeMap<String, String>> {
        let mut all =
            BTreeMap::from([("KUBERNETES_SERVICE_HOST".to_owned(), "172.30.0.1".to_owned())]);
        for from in list(&container["envFrom"]) {
            let map = self.object("ConfigMap", &text(&from["configMapRef"]["name"])?)?;
            for (name, value) in map["data"].as_object().context("data")? {
                all.insert(name.clone(), text(value)?);
            }
        }
        for variable in list(&container["env"]) {
            let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
            ensure!(field == "spec.nodeName", "{variable}");
            all.insert(text(&variable["name"])?, self.node_name.to_owned());
        }
        Ok(all)
    }

    /// The mounts of a container in the manifest.
    fn mounts(&self, spec: &Value, container: &Value) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for mount in list(&container["volumeMounts"]) {
            let volume = list(&spec["volumes"]).find(|volume| volume["name"] == mount["name"]);
            let volume = volume.with_context(|| format!("no volume for {mount}"))?;
            mounts.push(Mount {
                container_path: text(&mount["mountPath"])?,
                host_path: shown(&self.volume(volume)?)?,
                readonly: mount["readOnly"] == true,
                propagation: match mount["mountPropagation"].as_str() {
                    None => Propagation::Private,
                    Some("HostToContainer") => Propagation::HostToContainer,
                    Some(other) => anyhow::bail!("mountPropagation {other}"),
                } as i32,
            });
        }
        if spec["automountServiceAccountToken"] != false {
            mounts.push(read_only(ACCOUNT, &self.account)?);
        }
        Ok(mounts)
    }

    /// The path of a volume for the runtime.
    fn volume(&self, volume: &Value) -> Result<PathBuf> {
        let host = &volume["hostPath"];
        if host.is_null() {
            return self.written(volume);
        }
        let path = text(&host["path"])?;
        let path = self.paths.get(path.as_str()).cloned().unwrap_or(path.into());
        let here = self.containerd.as_seen_here(&path);
        match host["type"].as_str() {
            Some("DirectoryOrCreate") => fs::create_dir_all(&here)?,
            Some("FileOrCreate") if !here.exists() => fs::write(&here, "")?,
            Some("Directory") => ensure!(here.is_dir(), "{volume}"),
            _ => ensure!(here.exists(), "{volume}"),
        }
        Ok(path)
    }

    /// Writes a volume as kubelet does. There are no Secrets.
    fn written(&self, volume: &Value) -> Result<PathBuf> {
        let folder = made(&self.containerd.folder, &text(&volume["name"])?)?;
        if let Some(name) = volume["configMap"]["name"].as_str() {
            let map = self.object("ConfigMap", name)?;
            for (file, content) in map["data"].as_object().context("data")? {
                fs::write(folder.join(file), text(content)?)?;
            }
        } else if volume["secret"].is_object() {
            ensure!(volume["secret"]["optional"] == true, "{volume}");
        } else {
            self.project(volume, &folder)?;
        }
        Ok(folder)
    }

    fn project(&self, volume: &Value, folder: &Path) -> Result<()> {
        for source in list(&volume["projected"]["sources"]) {
            let (token, map) = (&source["serviceAccountToken"], &source["configMap"]);
            let field = &source["downwardAPI"]["items"][0];
            let (held, file) = if token.is_object() {
                ("token", &token["path"])
            } else if map["name"] == "kube-root-ca.crt" && map["items"][0]["key"] == "ca.crt" {
                ("ca.crt", &map["items"][0]["path"])
            } else {
                ensure!(field["fieldRef"]["fieldPath"] == "metadata.namespace", "{source}");
                ("namespace", &field["path"])
            };
            fs::copy(self.account.join(held), folder.join(text(file)?))?;
        }
        Ok(())
    }
}

impl DaemonPod {
    /// What `denizen-agent status` prints in the container `agent`; an error until the agent
    /// answers.
    pub fn status(&self) -> Result<Value> {
        let output = self.exec("agent", &["denizen-agent", "status", "--output", "json"])?;
        Ok(serde_json::from_str(&output)?)
    }

    /// The result of `denizen-agent check` in the container `agent`.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with(&[])
    }

    /// The same with these flags.
    pub fn check_with(&self, flags: &[&str]) -> Result<CheckReport> {
        let words = [&["denizen-agent", "check", "--output", "json"], flags].concat();
        let answer = self.cri.exec(self.id("agent")?, &words)?;
        CheckReport::read(answer.exit_code, &answer.stdout, &answer.stderr)
    }

    /// The standard output of a program in a container; an error unless it succeeds.
    pub fn exec(&self, container: &str, words: &[&str]) -> Result<String> {
        let answer = self.cri.exec(self.id(container)?, words)?;
        let complaint = String::from_utf8_lossy(&answer.stderr);
        ensure!(answer.exit_code == 0, "{words:?} in {container}: {complaint}");
        Ok(String::from_utf8(answer.stdout)?)
    }

    /// The folder in `/proc` of a container's first process; `root` in it has the container's
    /// files.
    pub fn process(&self, container: &str) -> Result<PathBuf> {
        let id = self.cri.pid(self.id(container)?)?;
        Ok(self.processes.join(id.to_string()))
    }

    /// The log of a container.
    pub fn log(&self, container: &str) -> String {
        let log = fs::read_to_string(self.logs.join(format!("{container}.log")));
        log.unwrap_or_default()
    }

    /// Ends all its containers.
    pub fn end(self) -> Result<()> {
        self.cri.stop_sandbox(&self.sandbox)?;
        self.cri.remove_sandbox(&self.sandbox)
    }

    fn id(&self, container: &str) -> Result<&str> {
        let id = self.containers.get(container);
        Ok(id.with_context(|| format!("no container {container}"))?)
    }

    fn start(
        &mut self,
        kubelet: &Kubelet<'_>,
        spec: &Value,
        container: &Value,
        sandbox: &SandboxConfig,
    ) -> Result<String> {
        let config = kubelet.config(spec, container)?;
        let name = text(&container["name"])?;
        let id = self.cri.run_container(&self.sandbox, sandbox, config)?;
        self.containers.insert(name.clone(), id);
        Ok(name)
    }

    fn wait_ended(&self, container: &str) -> Result<()> {
        let id = self.id(container)?;
        let has_ended = |status: &ContainerStatus| status.state == ContainerState::Exited as i32;
        let status = observed("ended", TIMEOUT, || self.cri.container(id), has_ended)
            .with_context(|| format!("{container}:\n{}", self.log(container)))?;
        ensure!(status.exit_code == 0, "{container} failed:\n{}", self.log(container));
        Ok(())
    }
}

fn sandbox(name: &str, spec: &Value, logs: &Path) -> Result<SandboxConfig> {
    let privileged = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|key| list(&spec[key]))
        .any(|container| container["securityContext"]["privileged"] == true);
    let security = SandboxSecurity { namespace_options: Some(namespaces(spec)), privileged };
    Ok(SandboxConfig {
        log_directory: shown(logs)?,
        linux: Some(LinuxSandbox { security_context: Some(security) }),
        ..SandboxConfig::new(name)
    })
}

fn namespaces(spec: &Value) -> NamespaceOption {
    let network = match spec["hostNetwork"] == true {
        true => NamespaceMode::Node,
        false => NamespaceMode::Pod,
    };
    NamespaceOption { network: network as i32, pid: NamespaceMode::Container as i32 }
}

fn security(spec: &Value, own: &Value) -> Result<ContainerSecurity> {
    let pod = &spec["securityContext"];
    ensure!(pod["seccompProfile"]["type"] == "RuntimeDefault", "{pod}");
    let number = |key: &str| pod[key].as_i64().map(|value| Int64 { value });
    let paths = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
    Ok(ContainerSecurity {
        capabilities: Some(Capabilities {
            add: texts(&own["capabilities"]["add"])?,
            drop: texts(&own["capabilities"]["drop"])?,
        }),
        privileged: own["privileged"] == true,
        namespace_options: Some(namespaces(spec)),
        run_as_user: number("runAsUser"),
        run_as_group: number("runAsGroup"),
        readonly_rootfs: own["readOnlyRootFilesystem"] == true,
        no_new_privs: own["allowPrivilegeEscalation"] == false,
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(SecurityProfile {}),
    })
}

fn read_only(at: &str, from: &Path) -> Result<Mount> {
    Ok(Mount {
        container_path: at.to_owned(),
        host_path: shown(from)?,
        readonly: true,
        propagation: Propagation::Private as i32,
    })
}

fn shown(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path that is text")?.to_owned())
}

fn text(value: &Value) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.with_context(|| format!("{value} is no text"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
