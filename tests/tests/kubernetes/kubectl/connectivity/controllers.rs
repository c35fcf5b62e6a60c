//! What a cluster makes of pods and services: kubelets start and end pods, and the control plane
//! gives addresses to services and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use denizen_tests::peers::api::{Api, ApiServer};
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

use super::PREFIX;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Where pods run.
pub trait Kubelets: Send + 'static {
    /// Starts a pod; its addresses. An error is its event: it is tried again.
    fn start(&mut self, pod: &Value) -> Result<Vec<IpAddr>>;
    /// Ends the pod of this UID.
    fn end(&mut self, uid: &str);
}

/// Controllers that run until this value is dropped.
pub struct Controllers {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Controllers {
    /// Those of this workstation's API.
    pub fn start(workstation: Arc<Workstation>, kubelets: impl Kubelets) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ending = is_over.clone();
        let thread = thread::spawn(move || {
            let mut state = ControllersState { kubelets, running: BTreeMap::new(), services: 0 };
            while !ending.load(Ordering::Relaxed) {
                state.turn(&workstation.api)?;
                thread::sleep(PAUSE);
            }
            state.running.keys().for_each(|uid| state.kubelets.end(uid));
            Ok(())
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(Ok(())) => {}
                failed => eprintln!("the controllers failed: {failed:?}"),
            }
        }
    }
}

struct ControllersState<K> {
    kubelets: K,
    /// By UID.
    running: BTreeMap<String, Vec<IpAddr>>,
    /// How many services have got addresses.
    services: u16,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

fn is_tests(object: &Value) -> bool {
    text(object, "namespace").starts_with(PREFIX)
}

impl<K: Kubelets> ControllersState<K> {
    fn turn(&mut self, api: &ApiServer) -> Result<()> {
        let pods: Vec<Value> = api.objects("pods").into_iter().filter(is_tests).collect();
        let uids: BTreeSet<&str> = pods.iter().map(|pod| text(pod, "uid")).collect();
        let (running, kubelets) = (&mut self.running, &mut self.kubelets);
        running.retain(|uid, _| {
            let is_there = uids.contains(&**uid);
            if !is_there {
                kubelets.end(uid);
            }
            is_there
        });
        for pod in &pods {
            if !self.running.contains_key(text(pod, "uid")) {
                self.start_pod(api, pod.clone())?;
            }
        }
        let services: Vec<Value> = api.objects("services").into_iter().filter(is_tests).collect();
        for service in &services {
            match service["spec"]["clusterIP"].is_null() {
                true => self.give_addresses(api, service.clone())?,
                false => put_slices(api, service, &pods)?,
            }
        }
        for slice in api.objects("endpointslices").iter().filter(|slice| is_tests(slice)) {
            let owner = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
            let is_of = |service: &Value| {
                text(service, "namespace") == text(slice, "namespace")
                    && Some(text(service, "name")) == owner
            };
            if !services.iter().any(is_of) {
                // It may have gone with its namespace.
                let _ = api.delete(slice);
            }
        }
        Ok(())
    }

    fn start_pod(&mut self, api: &ApiServer, mut pod: Value) -> Result<()> {
        let name = pod["spec"]["containers"][0]["name"].clone();
        let mut state = json!({ "running": {} });
        pod["status"] = json!({ "phase": "Running" });
        match self.kubelets.start(&pod) {
            Ok(ips) => {
                let of = ips.iter().map(|ip| json!({ "ip": ip }));
                pod["status"]["podIP"] = json!(ips.first());
                pod["status"]["podIPs"] = of.collect();
                self.running.insert(text(&pod, "uid").to_owned(), ips);
            }
            Err(why) => {
                pod["status"]["phase"] = "Pending".into();
                state = json!({ "waiting": { "reason": "ContainerCreating" } });
                let regarding = json!({ "kind": "Pod", "name": text(&pod, "name") });
                api.put(&json!({
                    "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Warning",
                    "metadata": { "namespace": text(&pod, "namespace"), "name": text(&pod, "uid") },
                    "regarding": regarding, "reason": "FailedCreatePodSandBox",
                    "note": why.to_string(),
                }))?;
            }
        }
        pod["status"]["containerStatuses"] = json!([{ "name": name, "state": state }]);
        if !api.update(&pod)?
            && let Some(_gone) = self.running.remove(text(&pod, "uid"))
        {
            self.kubelets.end(text(&pod, "uid"));
        }
        Ok(())
    }

    fn give_addresses(&mut self, api: &ApiServer, mut service: Value) -> Result<()> {
        self.services += 1;
        let number = self.services;
        let ips = [format!("172.30.1.{number}"), format!("fd00:172::1:{number}")];
        service["spec"]["clusterIP"] = json!(ips[0]);
        service["spec"]["clusterIPs"] = json!(ips);
        service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        if service["spec"]["type"] == "NodePort" {
            let ports = service["spec"]["ports"].as_array_mut().into_iter().flatten();
            for (port, at) in ports.zip(30000 + 2 * number..) {
                port["nodePort"] = at.into();
            }
        }
        api.update(&service).map(drop)
    }
}

/// The endpoints of a service, in a slice for each family, if they have changed.
fn put_slices(api: &ApiServer, service: &Value, pods: &[Value]) -> Result<()> {
    let selector = service["spec"]["selector"].as_object().cloned().unwrap_or_default();
    let is_selected = |pod: &&Value| {
        text(pod, "namespace") == text(service, "namespace")
            && selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    };
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().map(|port| {
        json!({ "name": port["name"], "protocol": port["protocol"], "port": port["targetPort"] })
    });
    let ports: Vec<Value> = ports.collect();
    for (family, is_ipv4) in [("IPv4", true), ("IPv6", false)] {
        let endpoints = pods.iter().filter(is_selected).flat_map(|pod| {
            let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
            let ips = ips.filter_map(|ip| ip["ip"].as_str()?.parse::<IpAddr>().ok());
            ips.filter(move |ip| ip.is_ipv4() == is_ipv4).map(|ip| {
                let target = json!({
                    "kind": "Pod", "namespace": text(pod, "namespace"), "name": text(pod, "name"),
                });
                json!({
                    "addresses": [ip], "nodeName": pod["spec"]["nodeName"], "targetRef": target,
                    "conditions": { "ready": true },
                })
            })
        });
        let name = format!("{}-{}", text(service, "name"), family.to_lowercase());
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": text(service, "namespace"), "name": name,
                "labels": { "kubernetes.io/service-name": text(service, "name") },
            },
            "addressType": family, "ports": ports, "endpoints": endpoints.collect::<Vec<_>>(),
        });
        let is_it = |known: &Value| {
            text(known, "namespace") == text(&slice, "namespace")
                && text(known, "name") == name
                && known["endpoints"] == slice["endpoints"]
        };
        if !api.objects("endpointslices").iter().any(is_it) {
            api.put(&slice)?;
        }
    }
    Ok(())
}
