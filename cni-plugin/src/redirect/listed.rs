//! For the agent: which pods a network configuration list that a runtime has used would have
//! redirected.

use std::collections::BTreeMap;

use denizen_state::json;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::RedirectConfig;
use crate::environment::pod;

/// The object `redirect` of denizen's entry in a network configuration list.
#[derive(Debug)]
pub struct Redirection {
    /// The object as written, for comparison: a different object may select other pods.
    object: Value,
    entry: RedirectConfig,
}

/// A network configuration list, as far as it is read here.
#[derive(Deserialize)]
struct NetworkList {
    plugins: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    name: String,
    redirect: Option<Value>,
}

impl Redirection {
    /// The redirection in `list`, a network configuration list. `None` if it does not redirect:
    /// denizen is not in it, or has no `redirect`, or one with which every ADD fails.
    pub fn of(list: &str) -> Option<Self> {
        let list: NetworkList = json::parse(list).ok()?;
        let plugins = list.plugins.iter().filter_map(|plugin| json::parse(plugin.get()).ok());
        let ours = plugins.filter(|plugin: &Plugin| plugin.name == "denizen");
        let object = ours.filter_map(|plugin| plugin.redirect).next()?;
        let entry = RedirectConfig::of(serde_json::from_value(object.clone()).ok()?).ok()?;
        Some(Self { object, entry })
    }

    /// Whether a pod that a runtime attached with these `args` (`CNI_ARGS`), `annotations` and
    /// interface should be redirected. True even if the pod's ADD would fail because its
    /// annotations ask for something impossible: such a pod needs its proxy, too.
    pub fn selects(
        &self,
        args: &str,
        annotations: &BTreeMap<String, String>,
        if_name: &str,
    ) -> bool {
        let Ok(Some(pod)) = pod(args) else { return false };
        self.entry.selects(annotations) == Ok(true)
            && !matches!(self.entry.decide(&pod, annotations, if_name), Ok(None))
    }
}

impl PartialEq for Redirection {
    fn eq(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(redirect: Value) -> String {
        let ours = json!({ "type": "denizen", "redirect": redirect });
        json!({ "name": "pods", "plugins": [{ "type": "bridge" }, ours] }).to_string()
    }

    /// A name, the pod's namespace, its annotations, and whether it is selected.
    type SelectedCase<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], bool);

    #[test]
    fn a_pod_of_the_past_is_selected_as_one_of_today() {
        let entry = json!({ "profile": "linkerd", "namespaces": { "never": null } });
        let redirection = Redirection::of(&list(entry)).unwrap();
        let proxy = ("linkerd.io/proxy-version", "edge-26.8.1");
        let cases: [SelectedCase<'_>; 8] = [
            ("injected", "shop", &[proxy], true),
            ("no proxy", "shop", &[], false),
            ("another mesh's", "shop", &[("sidecar.istio.io/status", "{}")], false),
            ("its namespace is left alone", "never", &[proxy], false),
            ("disabled", "shop", &[proxy, ("denizen.io/redirect", "disabled")], false),
            ("enabled", "shop", &[("denizen.io/redirect", "enabled")], true),
            ("neither", "shop", &[proxy, ("denizen.io/redirect", "perhaps")], false),
            ("wrong", "shop", &[proxy, ("config.linkerd.io/proxy-uid", "root")], true),
        ];
        for (name, namespace, annotations, expected) in cases {
            let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=web-0");
            let annotations =
                annotations.iter().map(|(key, text)| ((*key).into(), (*text).into())).collect();
            assert_eq!(redirection.selects(&args, &annotations, "eth0"), expected, "{name}");
            assert!(!redirection.selects("", &annotations, "eth0"), "{name}: no pod");
        }
        // Istio's annotations can say that nothing of the pod is redirected.
        let istio = Redirection::of(&list(json!({ "profile": "istio" }))).unwrap();
        let mut annotations = BTreeMap::from([(
            "sidecar.istio.io/status".to_owned(),
            r#"{"initContainers":["istio-validation"]}"#.to_owned(),
        )]);
        let args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
        assert!(istio.selects(args, &annotations, "eth0"));
        for list in ["includeInboundPorts", "includeOutboundIPRanges"] {
            annotations.insert(format!("traffic.sidecar.istio.io/{list}"), String::new());
        }
        assert!(!istio.selects(args, &annotations, "eth0"));
        assert!(istio != redirection && istio == Redirection::of(&istio_again()).unwrap());
    }

    fn istio_again() -> String {
        list(json!({ "profile": "istio" })).replace("bridge", "ptp")
    }

    #[test]
    fn lists_that_redirect_nothing() {
        let cases = [
            ("no list", "{}".to_owned()),
            ("no JSON", "{".to_owned()),
            ("without denizen", json!({ "plugins": [{ "type": "bridge" }] }).to_string()),
            ("nothing", list(Value::Null)),
            ("refused", list(json!({ "profile": "linkrd" }))),
            ("no object", list(json!("linkerd"))),
        ];
        for (name, list) in cases {
            assert!(Redirection::of(&list).is_none(), "{name}");
        }
    }
}
