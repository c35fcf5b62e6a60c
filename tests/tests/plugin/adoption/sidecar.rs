//! Pods with a mesh's proxy that were attached without denizen, and so are not redirected.

use denizen_tests::http::{fetch, url};
use denizen_tests::world::ip;

use super::*;

fn annotated(annotation: &str) -> impl FnOnce(&mut Value) {
    let annotations = json!({ annotation: "disabled", "linkerd.io/proxy-version": "edge-26.8.1" });
    move |cached| {
        cached["capabilityArgs"] = json!({ "io.kubernetes.cri.pod-annotations": annotations })
    }
}

#[test]
fn pods_with_a_proxy_from_before_the_installation_are_named_in_status() -> Result<()> {
    let context = AdoptionContext::new("adopt-proxy")?;
    let node = &context.cluster.world.node;
    context.earlier("without", Wiring::Routed, |_| ())?;
    context.earlier("unwanted", Wiring::Routed, annotated("denizen.io/redirect"))?;
    let (lacking, _) = context.earlier("lacking", Wiring::Bridged, annotated("other"))?;
    let agent = context.cluster.start_agent()?;
    let record = context.record(&lacking)?.context("no record")?;
    assert_eq!(record.sidecar.as_deref(), Some("linkerd"));
    let counts = || -> Result<(Value, Value)> {
        let status = agent.status()?;
        Ok((status["redirectedPods"].clone(), status["unredirectedPods"].clone()))
    };
    // Perhaps linkerd-init redirects all pods of this node.
    assert_eq!(counts()?, (json!(0), json!(0)));

    let redirected = context.cluster.add_pod("redirected", Wiring::Bridged)?;
    let redirect = json!({ "profile": "linkerd", "interfaces": ["eth0"] });
    let id = AttachmentId(redirected.attachment());
    RunDir::open(context.cluster.run_dir())?.update(PATIENCE, |state| {
        let record = state.attachments.get_mut(&id).expect("it is recorded");
        record.redirect = serde_json::from_value(redirect).expect("it is one");
    })?;
    context.wait("counted", &agent, || Ok(counts()? == (json!(1), json!(1))))?;
    let warnings = agent.status()?["warnings"].to_string();
    assert!(warnings.contains("1 pod has a mesh's proxy"), "{warnings}");
    assert!(warnings.contains("lacking"), "{warnings}");
    let metrics = fetch(node, &url(ip("127.0.0.1"), 10249, "/metrics"), &[])?.body;
    for metric in ["denizen_redirected_pods 1", "denizen_unredirected_pods 1"] {
        assert!(metrics.contains(&format!("\n{metric}\n")), "{metrics}");
    }
    Ok(())
}
