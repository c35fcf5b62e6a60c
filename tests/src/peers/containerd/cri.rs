//! The messages between kubelet and a runtime about a pod's sandbox: CRI v1 (`k8s.io/cri-api`,
//! `pkg/apis/runtime/v1/api.proto`), as far as the tests need it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use prost::Message;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::container::{
    ContainerConfig, ContainerStatus, ContainerStatusAnswer, ContainerStatusRequest, CreateRequest,
    ExecAnswer, ExecRequest, NamespaceOption,
};

/// A connection to a runtime.
pub struct Cri {
    channel: Channel,
    // Dropped after the channel, which needs it.
    runtime: Runtime,
}

/// Which pod a sandbox is for.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The pod's UID.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The pod's namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// The number of this attempt.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// A sandbox to be made.
#[derive(Clone, PartialEq, Message)]
pub struct SandboxConfig {
    /// Which pod it is for.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// The folder for its containers' logs.
    #[prost(string, tag = "3")]
    pub log_directory: String,
    /// The pod's host ports.
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    /// The pod's annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    /// The part that only Linux has. A runtime expects it, even if it is empty.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxSandbox>,
}

/// A host port.
#[derive(Clone, PartialEq, Message)]
pub struct PortMapping {
    /// 0: TCP, 1: UDP, 2: SCTP.
    #[prost(int32, tag = "1")]
    pub protocol: i32,
    /// The pod's port.
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    /// The node's port; 0 for a port that is only declared.
    #[prost(int32, tag = "3")]
    pub host_port: i32,
    /// The node's address; empty: every one.
    #[prost(string, tag = "4")]
    pub host_ip: String,
}

/// The part of a sandbox's configuration that only Linux has.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandbox {
    /// Its security settings.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SandboxSecurity>,
}

/// A sandbox's security settings.
#[derive(Clone, PartialEq, Message)]
pub struct SandboxSecurity {
    /// Whose namespaces it is in.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
    /// Whether it may contain privileged containers.
    #[prost(bool, tag = "6")]
    pub privileged: bool,
}

/// A message without any field that is used.
#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct RunRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<SandboxConfig>,
}

/// The id of a sandbox: the answer to `RunPodSandbox`, and the request of other calls.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    status: Option<SandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxStatus {
    #[prost(message, optional, tag = "5")]
    network: Option<Network>,
}

#[derive(Clone, PartialEq, Message)]
struct Network {
    #[prost(string, tag = "1")]
    ip: String,
    #[prost(message, repeated, tag = "2")]
    additional: Vec<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(string, tag = "1")]
    ip: String,
}

#[derive(Clone, PartialEq, Message)]
struct RuntimeStatusAnswer {
    #[prost(message, optional, tag = "1")]
    status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message)]
struct Condition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(bool, tag = "2")]
    status: bool,
    #[prost(string, tag = "3")]
    reason: String,
    #[prost(string, tag = "4")]
    message: String,
}

impl SandboxConfig {
    /// A sandbox for the pod with this name, with a network of its own.
    pub fn new(name: &str) -> Self {
        let metadata = Metadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            attempt: 0,
        };
        Self {
            metadata: Some(metadata),
            log_directory: String::new(),
            port_mappings: Vec::new(),
            annotations: BTreeMap::new(),
            linux: Some(LinuxSandbox::default()),
        }
    }
}

impl Cri {
    /// Connects to the runtime that listens at `socket`.
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::try_from(format!("unix:{}", socket.display()))?;
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self { channel, runtime })
    }

    /// Makes a sandbox with its network; returns its id.
    pub fn run_sandbox(&self, name: &str) -> Result<String> {
        self.run_sandbox_as(SandboxConfig::new(name))
    }

    /// The same with another configuration.
    pub fn run_sandbox_as(&self, config: SandboxConfig) -> Result<String> {
        let config = Some(config);
        let Named { id } = self.call("RunPodSandbox", RunRequest { config })?;
        Ok(id)
    }

    /// Makes and starts a container in `sandbox`, whose configuration is `made`; returns its id.
    pub fn run_container(
        &self,
        sandbox: &str,
        made: &SandboxConfig,
        config: ContainerConfig,
    ) -> Result<String> {
        let request = CreateRequest {
            sandbox: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(made.clone()),
        };
        let Named { id } = self.call("CreateContainer", request)?;
        let Nothing {} = self.call("StartContainer", Named { id: id.clone() })?;
        Ok(id)
    }

    /// The status of a container.
    pub fn container(&self, id: &str) -> Result<ContainerStatus> {
        self.container_status(id)?.status.context("a container without a status")
    }

    /// The process id of a container's first process, in the runtime's process namespace.
    pub fn pid(&self, container: &str) -> Result<u64> {
        let answer = self.container_status(container)?;
        let info = answer.info.get("info").context("no information about the container")?;
        let info: Value = serde_json::from_str(info)?;
        info["pid"].as_u64().with_context(|| format!("no process id: {info}"))
    }

    fn container_status(&self, id: &str) -> Result<ContainerStatusAnswer> {
        let container = id.to_owned();
        self.call("ContainerStatus", ContainerStatusRequest { container, verbose: true })
    }

    /// Runs a program in a container, for 30 seconds at most.
    pub fn exec(&self, container: &str, words: &[&str]) -> Result<ExecAnswer> {
        let request = ExecRequest {
            container: container.to_owned(),
            words: words.iter().map(|&word| word.to_owned()).collect(),
            timeout: 30,
        };
        self.call("ExecSync", request)
    }

    /// Stops a sandbox, which removes its network. Tries twice, as kubelet does: the call fails if
    /// a container ends by itself at the same moment.
    pub fn stop_sandbox(&self, id: &str) -> Result<()> {
        let stop = || self.call("StopPodSandbox", Named { id: id.to_owned() });
        let Nothing {} = stop().or_else(|_| stop())?;
        Ok(())
    }

    /// Removes what is left of a sandbox.
    pub fn remove_sandbox(&self, id: &str) -> Result<()> {
        let Nothing {} = self.call("RemovePodSandbox", Named { id: id.to_owned() })?;
        Ok(())
    }

    /// The pod's addresses, as the runtime reports them to kubelet.
    pub fn addresses(&self, id: &str) -> Result<Vec<String>> {
        let answer: StatusAnswer = self.call("PodSandboxStatus", Named { id: id.to_owned() })?;
        let network = answer.status.and_then(|status| status.network);
        let network = network.context("a sandbox without a network")?;
        let additional = network.additional.into_iter().map(|address| address.ip);
        Ok([network.ip].into_iter().chain(additional).collect())
    }

    /// Why the runtime cannot make pods; `None` if it can.
    pub fn not_ready(&self) -> Result<Option<String>> {
        let answer: RuntimeStatusAnswer = self.call("Status", Nothing {})?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let bad = conditions.into_iter().find(|condition| !condition.status);
        Ok(bad.map(|condition| {
            format!("{}: {} {}", condition.kind, condition.reason, condition.message)
        }))
    }

    fn call<Q, A>(&self, method: &str, question: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = format!("/runtime.v1.RuntimeService/{method}").parse()?;
        let mut grpc = Grpc::new(self.channel.clone());
        let answer = self.runtime.block_on(async {
            grpc.ready().await.context("the runtime is gone")?;
            let answer =
                grpc.unary(tonic::Request::new(question), path, ProstCodec::<Q, A>::default());
            answer.await.map_err(|status| anyhow::anyhow!("{method}: {}", status.message()))
        })?;
        Ok(answer.into_inner())
    }
}
