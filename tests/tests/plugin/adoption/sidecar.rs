//! Pods with a mesh's proxy from before the plugin redirected such pods: adopted ones, and those
//! that the plugin recorded without `redirect` in its entry.

use data_encoding::BASE64;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};

use super::*;

const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// As containerd keeps the annotations of an injected pod with another one.
fn annotated(annotation: &str) -> impl FnOnce(&mut Value) {
    let annotations = json!({ annotation: "disabled", "linkerd.io/proxy-version": "edge-26.8.1" });
    move |cached| {
        cached["capabilityArgs"] =
            json!({ ANNOTATIONS: annotations, "dns": {}, "portMappings": null })
    }
}

/// As CRI-O keeps them; the pod is of this namespace.
fn of_namespace(namespace: &str) -> impl FnOnce(&mut Value) {
    move |cached| {
        cached["capabilityArgs"] =
            json!({ "ipRanges": [], ANNOTATIONS: { "linkerd.io/proxy-version": "edge-26.8.1" } });
        for arg in cached["cniArgs"].as_array_mut().expect("a list") {
            if arg[0] == "K8S_POD_NAMESPACE" {
                arg[1] = namespace.into();
            }
        }
    }
}

/// A pod that the plugin attached, and that the runtime remembers by `edit`.
fn recorded(
    context: &AdoptionContext,
    name: &str,
    edit: impl FnOnce(&mut Value),
) -> Result<(Pod, PathBuf)> {
    let pod = context.cluster.add_pod(name, Wiring::Bridged)?;
    let (file, mut cached) = pod.cached(pod.netns.path().to_str());
    edit(&mut cached);
    let file = context.remember(&file, &cached.to_string())?;
    Ok((pod, file))
}

/// A pod of a time when the plugin's entry has `redirect`, which it redirects or not.
fn today(context: &AdoptionContext, name: &str, redirects: bool) -> Result<()> {
    let entry = json!({ "profile": "linkerd", "namespaces": { "never": null } });
    let list = json!({ "plugins": [{ "type": "denizen", "redirect": entry }] });
    let config = BASE64.encode(list.to_string().as_bytes());
    let (pod, _) = recorded(context, name, |cached| {
        cached["config"] = config.into();
        if redirects {
            annotated("other")(cached);
        }
    })?;
    let id = AttachmentId(pod.attachment());
    RunDir::open(context.cluster.run_dir())?.update(TIMEOUT, |state| {
        let record = state.attachments.get_mut(&id).expect("it is recorded");
        let redirect = json!({ "profile": "linkerd", "interfaces": ["eth0"] });
        record.redirect = redirects.then(|| serde_json::from_value(redirect).expect("it is one"));
    })?;
    Ok(())
}

/// How many pods are redirected, and how many lack it.
fn counts(agent: &Agent) -> Result<(Value, Value)> {
    let status = agent.status()?;
    Ok((status["redirectedPods"].clone(), status["unredirectedPods"].clone()))
}

#[test]
fn pods_with_a_proxy_from_before_redirection_are_named_in_status() -> Result<()> {
    let context = AdoptionContext::new("adopt-proxy")?;
    let node = &context.cluster.world.node;
    context.earlier("without", Wiring::Routed, |_| ())?;
    context.earlier("unwanted", Wiring::Routed, annotated("denizen.io/redirect"))?;
    recorded(&context, "spared", of_namespace("never"))?;
    let (adopted, _) = context.earlier("adopted", Wiring::Bridged, annotated("other"))?;
    let (pod, file) = recorded(&context, "recorded", of_namespace("default"))?;
    let agent = context.cluster.start_agent()?;
    assert!(context.record(&adopted)?.context("no record")?.adopted);
    // Perhaps linkerd-init redirects all pods of this node.
    assert_eq!(counts(&agent)?, (json!(0), json!(0)));

    // Not a redirected pod shows what the plugin's entry is, but any pod of that time.
    today(&context, "plain", false)?;
    context.wait("counted", &agent, || Ok(counts(&agent)? == (json!(0), json!(2))))?;
    today(&context, "redirected", true)?;
    context.wait("counted", &agent, || Ok(counts(&agent)? == (json!(1), json!(2))))?;
    let warnings = agent.status()?["warnings"].to_string();
    for words in ["2 pods have a mesh's proxy", "/adopted", "/recorded"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    let metrics = fetch(node, &url(ip("127.0.0.1"), 10249, "/metrics"), &[])?.body;
    for metric in ["denizen_redirected_pods 1", "denizen_unredirected_pods 2"] {
        assert!(metrics.contains(&format!("\n{metric}\n")), "{metrics}");
    }

    agent.terminate()?;
    let agent = context.cluster.start_agent()?;
    context.wait("known again", &agent, || Ok(counts(&agent)? == (json!(1), json!(2))))?;
    pod.detach(node)?;
    fs::remove_file(file)?;
    today(&context, "instead", true)?;
    context.wait("redirected", &agent, || Ok(counts(&agent)? == (json!(2), json!(1))))
}
