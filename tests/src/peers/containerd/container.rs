//! CRI's messages about containers (`k8s.io/cri-api`, `pkg/apis/runtime/v1/api.proto`), as far as
//! the tests need them.

use std::collections::BTreeMap;

use prost::{Enumeration, Message};

/// A container to be made.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    /// Its name within the pod.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    /// The image that it is made from.
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    /// The program, in place of the image's entry point.
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    /// The program's arguments.
    #[prost(string, repeated, tag = "4")]
    pub args: Vec<String>,
    /// The environment.
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<KeyValue>,
    /// What is mounted.
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<Mount>,
    /// Its log file, below the sandbox's folder of logs.
    #[prost(string, tag = "11")]
    pub log_path: String,
    /// The part that only Linux has.
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainerConfig>,
}

/// A container's name.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// An image's name.
#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    /// The name.
    #[prost(string, tag = "1")]
    pub image: String,
}

/// A variable.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A bind mount.
#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    /// Where the container sees it.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where the runtime sees it.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether the container cannot write there.
    #[prost(bool, tag = "3")]
    pub readonly: bool,
    /// Whether the container sees mounts that the host makes below it later.
    #[prost(enumeration = "Propagation", tag = "5")]
    pub propagation: i32,
}

/// Which later mounts are visible where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum Propagation {
    /// In neither direction.
    Private = 0,
    /// The host's mounts, in the container.
    HostToContainer = 1,
}

/// The part of a container's configuration that only Linux has.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerConfig {
    /// Its security settings.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<ContainerSecurity>,
}

/// A container's security settings.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerSecurity {
    /// Capabilities beyond the runtime's default, or fewer.
    #[prost(message, optional, tag = "1")]
    pub capabilities: Option<Capabilities>,
    /// Whether it is privileged.
    #[prost(bool, tag = "2")]
    pub privileged: bool,
    /// Whose namespaces it is in.
    #[prost(message, optional, tag = "3")]
    pub namespace_options: Option<NamespaceOption>,
    /// Its user.
    #[prost(message, optional, tag = "5")]
    pub run_as_user: Option<Int64>,
    /// Whether it cannot write to its own file system.
    #[prost(bool, tag = "7")]
    pub readonly_rootfs: bool,
    /// Whether programs that it executes get no further privileges.
    #[prost(bool, tag = "11")]
    pub no_new_privs: bool,
    /// Its group.
    #[prost(message, optional, tag = "12")]
    pub run_as_group: Option<Int64>,
    /// Files that it cannot see.
    #[prost(string, repeated, tag = "13")]
    pub masked_paths: Vec<String>,
    /// Files that it can only read.
    #[prost(string, repeated, tag = "14")]
    pub readonly_paths: Vec<String>,
    /// Which system calls it may use.
    #[prost(message, optional, tag = "15")]
    pub seccomp: Option<SecurityProfile>,
}

/// Capabilities, by their names without `CAP_`.
#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    /// Added.
    #[prost(string, repeated, tag = "1")]
    pub add: Vec<String>,
    /// Dropped.
    #[prost(string, repeated, tag = "2")]
    pub drop: Vec<String>,
}

/// Whose namespaces a pod or container is in.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    /// Of the network.
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub network: i32,
    /// Of processes.
    #[prost(enumeration = "NamespaceMode", tag = "2")]
    pub pid: i32,
}

/// Whose namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum NamespaceMode {
    /// The pod's.
    Pod = 0,
    /// One of its own.
    Container = 1,
    /// The node's.
    Node = 2,
}

/// An optional number.
#[derive(Clone, PartialEq, Message)]
pub struct Int64 {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// A seccomp profile. It names none, so the runtime's default is used.
#[derive(Clone, PartialEq, Message)]
pub struct SecurityProfile {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateRequest {
    #[prost(string, tag = "1")]
    pub sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<super::cri::SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    pub container: String,
    /// Whether the answer also contains the runtime's own information.
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
    /// The runtime's own information.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}

/// The status of a container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    /// Whether it was started, runs or has ended.
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub state: i32,
    /// Its exit code.
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
}

/// The states of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// It was made.
    Created = 0,
    /// It runs.
    Running = 1,
    /// It has ended.
    Exited = 2,
    /// Not known.
    Unknown = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecRequest {
    #[prost(string, tag = "1")]
    pub container: String,
    #[prost(string, repeated, tag = "2")]
    pub words: Vec<String>,
    /// In seconds.
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}

/// What a program in a container said.
#[derive(Clone, PartialEq, Message)]
pub struct ExecAnswer {
    /// On standard output.
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    /// On standard error.
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    /// How it ended.
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}
