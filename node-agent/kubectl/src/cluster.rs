//! The cluster: how it is reached, its nodes, and which pod is a node's agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::no_answer::NoAnswer;
use crate::objects::{self, ContainerStatus, Metadata, NodeObject, PodObject, percent};

/// The label of an agent's pod.
const LABEL: &str = "app.kubernetes.io/name=denizen";

/// Where denizen is usually installed: the namespace of its manifests.
const USUAL_NAMESPACE: &str = "kube-system";

/// The container of the agent in its pod.
pub const CONTAINER: &str = "agent";

/// The flags by which the cluster is reached, named as kubectl's.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file; without it, KUBECONFIG, which may be a list, or ~/.kube/config
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// The kubeconfig's cluster
    #[arg(long, value_name = "NAME", global = true)]
    pub cluster: Option<String>,
    /// The kubeconfig's user
    #[arg(long, value_name = "NAME", global = true)]
    pub user: Option<String>,
    /// The user whose rights are used
    #[arg(long = "as", value_name = "USER", global = true)]
    pub impersonated: Option<String>,
    /// The groups whose rights are used
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonated", global = true)]
    pub impersonated_groups: Vec<String>,
    /// The namespace of names without one; without it, that of the context
    #[arg(short, long, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
    /// The namespace of denizen's own pods; without it, they are looked for in all
    #[arg(long, value_name = "NAME", global = true)]
    pub agent_namespace: Option<String>,
}

/// The pod whose container [`CONTAINER`] is a node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    pub namespace: String,
    pub name: String,
    /// `--run-dir` of the agent, if it is not the default.
    pub run_dir: Option<String>,
    /// The image of its container.
    pub image: String,
}

/// A node, and its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAgent {
    pub node: String,
    pub agent: Result<AgentPod, NoAnswer>,
    /// What the API says of the node, if it may be read.
    pub object: Option<NodeObject>,
}

/// A way to the API.
pub struct Api {
    pub client: Client,
    /// The namespace of names without one.
    pub namespace: String,
    agent_namespace: Option<String>,
}

/// The nodes, sorted by name.
#[derive(Debug, Default)]
pub struct NodeAgents {
    pub all: Vec<NodeAgent>,
    /// What could not be read, and the consequence.
    pub notes: Vec<String>,
}

impl Api {
    pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Self> {
        let options = KubeConfigOptions {
            context: args.context.clone(),
            cluster: args.cluster.clone(),
            user: args.user.clone(),
        };
        let kubeconfig = match &args.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        let mut config = match kubeconfig {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .context("the kubeconfig leads to no cluster")?,
            Err(KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath)
                if args.kubeconfig.is_none() =>
            {
                Config::incluster().context(
                    "there is no kubeconfig, and this is no pod: see --kubeconfig, or KUBECONFIG",
                )?
            }
            Err(error) => return Err(error).context("cannot read the kubeconfig"),
        };
        if args.impersonated.is_some() {
            config.auth_info.impersonate = args.impersonated.clone();
            config.auth_info.impersonate_groups = Some(args.impersonated_groups.clone());
        }
        let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("cannot use the kubeconfig")?;
        Ok(Self { client, namespace, agent_namespace: args.agent_namespace.clone() })
    }

    /// `NAMESPACE/NAME` of a name that may have no namespace.
    pub fn qualified(&self, name: &str) -> String {
        match name.contains('/') {
            true => name.to_owned(),
            false => format!("{}/{name}", self.namespace),
        }
    }

    /// All nodes and their agents.
    pub async fn node_agents(&self) -> anyhow::Result<NodeAgents> {
        let mut notes = Vec::new();
        let pods = self.agent_pods(&mut notes).await?;
        let nodes = match objects::list::<NodeObject>(&self.client, "/api/v1/nodes", &[]).await {
            Ok(nodes) => Some(nodes),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                notes.push(format!(
                    "nodes without an agent are not known: {} (needs: list nodes)",
                    status.message
                ));
                None
            }
            Err(error) => return Err(error).context("cannot list nodes"),
        };
        Ok(NodeAgents { all: node_agents(nodes, pods), notes })
    }

    async fn agent_pods(&self, notes: &mut Vec<String>) -> anyhow::Result<Vec<PodObject>> {
        let selector = [("labelSelector", LABEL)];
        let of = |namespace: &str| format!("/api/v1/namespaces/{}/pods", percent(namespace));
        let pods: Result<Vec<PodObject>, _> = match &self.agent_namespace {
            Some(namespace) => objects::list(&self.client, &of(namespace), &selector).await,
            None => objects::list(&self.client, "/api/v1/pods", &selector).await,
        };
        let pods = match pods {
            Err(kube::Error::Api(status))
                if status.code == 403 && self.agent_namespace.is_none() =>
            {
                notes.push(format!(
                    "agents are looked for in {USUAL_NAMESPACE} alone (see --agent-namespace): {}",
                    status.message
                ));
                objects::list(&self.client, &of(USUAL_NAMESPACE), &selector).await
            }
            pods => pods,
        };
        let pods = pods.context("cannot list the agents' pods (needs: list pods)")?;
        only_one_namespace(&pods)?;
        Ok(pods)
    }
}

/// Refuses agents in several namespaces: anybody who may create pods may give them denizen's label,
/// and so answer in an agent's place.
fn only_one_namespace(pods: &[PodObject]) -> anyhow::Result<()> {
    let namespaces: BTreeSet<&str> = pods.iter().map(|pod| &*pod.metadata.namespace).collect();
    if namespaces.len() > 1 {
        let names = namespaces.into_iter().collect::<Vec<_>>().join(", ");
        bail!(
            "pods with the label {LABEL} are in several namespaces ({names}): which one is denizen's? \
             Say --agent-namespace"
        );
    }
    Ok(())
}

/// The nodes and their agents. If `nodes` could not be read, only the nodes with an agent's pod.
fn node_agents(nodes: Option<Vec<NodeObject>>, pods: Vec<PodObject>) -> Vec<NodeAgent> {
    let mut by_node: BTreeMap<String, Vec<PodObject>> = BTreeMap::new();
    for pod in pods {
        // A pod that is not scheduled has no node yet.
        if !pod.spec.node_name.is_empty() {
            by_node.entry(pod.spec.node_name.clone()).or_default().push(pod);
        }
    }
    let objects = nodes.map(|nodes| {
        let linux = nodes.into_iter().filter(NodeObject::is_linux);
        linux.map(|node| (node.metadata.name.clone(), node)).collect::<BTreeMap<_, _>>()
    });
    let names: BTreeSet<String> = match &objects {
        Some(objects) => objects.keys().cloned().collect(),
        None => by_node.keys().cloned().collect(),
    };
    let node_agent = |node: String| {
        let object = objects.as_ref().and_then(|objects| objects.get(&node)).cloned();
        let agent = agent_of(by_node.get(&node).map(Vec::as_slice).unwrap_or_default());
        let agent = agent.map_err(|why| match &object {
            Some(object) if why.code == NoAnswer::NO_AGENT => why.and(&taints(object)),
            Some(_) | None => why,
        });
        NodeAgent { node, agent, object }
    };
    names.into_iter().map(node_agent).collect()
}

fn taints(node: &NodeObject) -> String {
    let taints = node.spec.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect));
    let taints = taints.collect::<Vec<_>>().join(", ");
    if taints.is_empty() { String::new() } else { format!("; taints: {taints}") }
}

/// The pod to ask: while a new pod replaces an old one, the one that runs.
fn agent_of(pods: &[PodObject]) -> Result<AgentPod, NoAnswer> {
    let is_leaving = |pod: &&PodObject| pod.metadata.deletion_timestamp.is_some();
    let youngest = |pods: Vec<&PodObject>| {
        let last = pods.into_iter().max_by_key(|pod| &pod.metadata.creation_timestamp);
        last.cloned()
    };
    let staying = youngest(pods.iter().filter(|pod| !is_leaving(pod)).collect());
    let pod = staying.or_else(|| youngest(pods.iter().collect()));
    let Some(pod) = pod else {
        return Err(NoAnswer::new(NoAnswer::NO_AGENT, "no pod of denizen is on this node"));
    };
    let status = pod.status.container_statuses.iter().find(|status| status.name == CONTAINER);
    if status.is_none_or(|status| status.state.running.is_none()) {
        return Err(not_running(&pod, status));
    }
    let container = pod.spec.containers.iter().find(|container| container.name == CONTAINER);
    let image = container.map(|container| container.image.clone()).unwrap_or_default();
    let args = container.map(|container| &container.args[..]).unwrap_or_default();
    let run_dir = args.iter().enumerate().find_map(|(at, arg)| match arg.as_str() {
        "--run-dir" => args.get(at + 1).cloned(),
        arg => arg.strip_prefix("--run-dir=").map(str::to_owned),
    });
    let Metadata { namespace, name, .. } = pod.metadata;
    Ok(AgentPod { namespace, name, run_dir, image })
}

fn not_running(pod: &PodObject, status: Option<&ContainerStatus>) -> NoAnswer {
    let waiting = status.and_then(|status| status.state.waiting.as_ref());
    let ended = status.and_then(|status| {
        status.last_state.terminated.as_ref().or(status.state.terminated.as_ref())
    });
    let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
    let mut why = match (waiting, ended) {
        (Some(waiting), _) if !waiting.reason.is_empty() => format!("{name}: {}", waiting.reason),
        (_, Some(_)) => format!("{name}: its container has ended"),
        (_, None) => format!("{name}: {} {}", pod.status.phase, pod.status.reason),
    };
    if let Some(ended) = ended {
        why.push_str(&format!(", exit code {} ({})", ended.exit_code, ended.reason));
    }
    NoAnswer::new(NoAnswer::NOT_RUNNING, why.trim_end())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(node: &str, name: &str, state: Value) -> PodObject {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "kube-system", "creationTimestamp": name },
            "spec": { "nodeName": node, "containers": [
                { "name": "agent", "args": ["run", "--run-dir=/run/other"] },
            ] },
            "status": { "phase": "Running", "containerStatuses": [
                { "name": "install-cni", "state": { "running": {} } },
                { "name": "agent", "state": state,
                  "lastState": { "terminated": { "exitCode": 139, "reason": "Error" } } },
            ] },
        }))
        .unwrap()
    }

    fn node(name: &str) -> NodeObject {
        let taints = json!([{ "key": "gpu", "effect": "NoExecute" }]);
        serde_json::from_value(
            json!({ "metadata": { "name": name }, "spec": { "taints": taints } }),
        )
        .unwrap()
    }

    #[test]
    fn every_node_has_an_agent_or_a_reason() {
        let running = || json!({ "running": {} });
        let mut leaving = pod("a", "9", running());
        leaving.metadata.deletion_timestamp = Some("now".to_owned());
        let crashing = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let pods = vec![
            pod("a", "1", running()),
            pod("a", "2", running()),
            leaving,
            pod("b", "3", crashing),
            pod("", "4", json!({})),
        ];
        let mut windows = node("w");
        windows.metadata.labels.insert("kubernetes.io/os".into(), "windows".into());
        let found = node_agents(Some(vec![node("c"), node("a"), node("b"), windows]), pods.clone());
        let [a, b, c] = &found[..] else { panic!("{found:#?}") };
        let agent = a.agent.as_ref().unwrap();
        assert_eq!((&*agent.name, agent.run_dir.as_deref()), ("2", Some("/run/other")));
        let why = b.agent.as_ref().unwrap_err();
        assert_eq!(why.code, NoAnswer::NOT_RUNNING);
        assert!(why.reason.contains("CrashLoopBackOff, exit code 139"), "{why:?}");
        let why = c.agent.as_ref().unwrap_err();
        assert!(why.reason.contains("gpu:NoExecute"), "{why:?}");
        let without = node_agents(None, pods);
        let names: Vec<&str> = without.iter().map(|node_agent| &*node_agent.node).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn pods_that_only_bear_the_label_are_not_asked() {
        let mut other = pod("a", "x", json!({}));
        other.metadata.namespace = "hacker".to_owned();
        let error = only_one_namespace(&[pod("a", "1", json!({})), other]).unwrap_err();
        assert!(error.to_string().contains("hacker, kube-system"), "{error}");
    }
}
