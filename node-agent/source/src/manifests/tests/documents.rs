//! Formats, lists, and broken files.

use super::*;

#[test]
fn files_of_every_form() {
    let json = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"d"},
                   "spec":{"clusterIP":"10.0.0.1"}}"#;
    let list = |items: &str| format!(r#"{{"apiVersion":"v1","kind":"List","items":{items}}}"#);
    let yaml = service("a", "10.0.0.1");
    let indented: String = yaml.lines().map(|line| format!("  {line}\n")).collect();
    let a = "d/a 10.0.0.1";
    let cases: Vec<(&str, &str, String, Vec<&str>)> = vec![
        ("YAML", "x.yaml", yaml.clone(), vec![a]),
        ("YAML with the other ending", "x.yml", yaml.clone(), vec![a]),
        ("JSON", "x.json", json.to_owned(), vec![a]),
        ("JSON in YAML", "x.yaml", format!("---\n{json}\n---\n{}", service("b", "10.0.0.2")), vec![a, "d/b 10.0.0.2"]),
        ("flow style that is not JSON", "x.yaml", "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: d}, spec: {clusterIP: 10.0.0.1}}".into(), vec![a]),
        ("several JSON documents", "x.json", format!("{json}\n{}", json.replace("\"a\"", "\"b\"")), vec![a, "d/b 10.0.0.1"]),
        ("a JSON list", "x.json", list(&format!("[{json}]")), vec![a]),
        ("an empty JSON list", "x.json", list("[]"), vec![]),
        ("a JSON list of nothing", "x.json", list("null"), vec![]),
        ("a list with its kind first", "x.yaml", format!("apiVersion: v1\nkind: List\nitems:\n-\n{indented}"), vec![a]),
        ("a list with its kind last", "x.yaml", format!("apiVersion: v1\nitems:\n-\n{indented}kind: List # sic\n"), vec![a]),
        ("a list in flow style", "x.yaml", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a, namespace: d}, spec: {clusterIP: 10.0.0.1}}]}".into(), vec![a]),
        ("a list of nothing", "x.yaml", "apiVersion: v1\nkind: List\nitems:\n".into(), vec![]),
        ("the API's own list", "x.json", r#"{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"1"},
            "items":[{"metadata":{"name":"a","namespace":"d"},"spec":{"clusterIP":"10.0.0.1"}}]}"#.into(), vec![a]),
        ("the API's own list in YAML", "x.yaml", "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a, namespace: d}\n  spec: {clusterIP: 10.0.0.1}\n".into(), vec![a]),
        ("no namespace", "x.yaml", yaml.replace(", namespace: d", ""), vec!["default/a 10.0.0.1"]),
        ("anchors", "x.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: &n a, namespace: d, labels: {app: *n}}\nspec: {clusterIP: 10.0.0.1}\n".into(), vec![a]),
        ("carriage returns", "x.yaml", yaml.replace('\n', "\r\n"), vec![a]),
        ("another ending", "x.txt", yaml.clone(), vec![]),
        ("no ending", "yaml", yaml.clone(), vec![]),
        ("hidden", ".x.yaml", yaml.clone(), vec![]),
        ("empty", "x.yaml", String::new(), vec![]),
        ("empty JSON", "x.json", String::new(), vec![]),
        ("other kinds", "x.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {ports: 7}\n".into(), vec![]),
        ("Knative's Service", "x.yaml", yaml.replace("v1", "serving.knative.dev/v1"), vec![]),
        ("headless", "x.yaml", yaml.replace("10.0.0.1", "None"), vec![]),
    ];
    for (name, file, text, expected) in cases {
        let place = TestFolder::new();
        place.write(file, &text);
        let (events, problems) = place.fresh();
        assert_eq!(services(&events), expected, "{name}");
        assert!(problems.is_empty(), "{name}: {problems:?}");
        assert_eq!(events[events.len() - listed().len()..], listed(), "{name}");
    }
}

#[test]
fn broken_parts_are_named_and_the_rest_is_used() {
    let (a, b) = (service("a", "10.0.0.1"), service("b", "10.0.0.2"));
    let both = vec!["d/a 10.0.0.1", "d/b 10.0.0.2"];
    let cases: Vec<(&str, &str, String, Vec<&str>, &str)> = vec![
        ("not YAML", "x.yaml", format!("{a}---\nkind: [\n---\n{b}"), both.clone(), "x.yaml, document 2 (line 6): skipped: not YAML: "),
        ("not an object", "x.yaml", format!("{a}---\n- 1\n---\n{b}"), both.clone(), "x.yaml, document 2 (line 5): skipped: not an object of the Kubernetes API: expected a mapping with apiVersion and kind"),
        ("without a kind", "x.yaml", format!("{a}---\napiVersion: v1\n---\n{b}"), both.clone(), "x.yaml, document 2 (line 5): skipped: not an object"),
        ("without a name", "x.yaml", format!("{a}---\n{}---\n{b}", a.replace("name: a, ", "")), both.clone(), "x.yaml, document 2 (line 5): skipped: Service without metadata.name"),
        ("a field of another type", "x.yaml", format!("{}---\n{b}", a.replace("port: 80", "port: http")), vec!["d/b 10.0.0.2"], "x.yaml, document 1 (line 1): skipped: Service d/a: spec.ports[0].port: invalid type: string \"http\", expected i64"),
        ("a field of another type in JSON", "x.json", r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":"80"}]}}"#.into(), vec![], "x.json, document 1: skipped: Service a: spec.ports[0].port: invalid type: string \"80\", expected i64"),
        ("one field", "x.yaml", format!("{}---\n{b}", a.replace("{clusterIP", "{externalIPs: [x], clusterIP")), both.clone(), "x.yaml, document 1 (line 1): Service d/a: spec.externalIPs[0] \"x\": not an IP address: left out"),
        ("not JSON", "x.json", "{\"apiVersion\":\n}".into(), vec![], "x.json, document 1 (line 2): skipped: not JSON, and nothing after it is used: expected value"),
        ("an item of a list", "x.yaml", "apiVersion: v1\nkind: List\nitems: [7, {apiVersion: v1, kind: Service, metadata: {name: a, namespace: d}, spec: {clusterIP: 10.0.0.1}}]\n".into(), vec!["d/a 10.0.0.1"], "x.yaml, document 1, item 0 (line 1): skipped: not an object"),
        ("items that are no list", "x.json", r#"{"apiVersion":"v1","kind":"List","items":{}}"#.into(), vec![], "x.json, document 1: skipped: not an object of the Kubernetes API: the items of a list are not a list"),
        ("twice in a file", "x.yaml", format!("{a}---\n{}", service("a", "10.0.0.9")), vec!["d/a 10.0.0.1"], "x.yaml, document 2 (line 5): Service d/a is in an earlier document already: left out"),
        ("an alias bomb", "x.yaml", bomb(), vec![], "x.yaml, document 1 (line "),
    ];
    for (name, file, text, expected, problem) in cases {
        let place = TestFolder::new();
        place.write(file, &text);
        let (events, problems) = place.fresh();
        assert_eq!(services(&events), expected, "{name}");
        assert_eq!(problems.len(), 1, "{name}: {problems:?}");
        assert!(problems[0].starts_with(problem), "{name}: {}", problems[0]);
    }
}

/// A few lines that expand to 10^9 elements.
fn bomb() -> String {
    let mut text = String::from("apiVersion: v1\nkind: Service\nl0: &l0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let below = format!("*l{}", level - 1);
        text += &format!("l{level}: &l{level} [{}]\n", vec![below; 10].join(","));
    }
    text
}

#[test]
fn a_file_that_is_not_text_is_skipped() {
    let place = TestFolder::new();
    place.write("b.yaml", &service("b", "10.0.0.2"));
    std::os::unix::fs::symlink("/dev/null", place.folder.path().join("device.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", place.folder.path().join("dangling.yaml")).unwrap();
    std::fs::create_dir(place.folder.path().join("folder.yaml")).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test writes as any editor would")]
    std::fs::write(place.folder.path().join("a.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let (events, problems) = place.fresh();
    assert_eq!(services(&events), ["d/b 10.0.0.2"]);
    assert_eq!(
        problems,
        [
            "a.yaml: skipped: not text in UTF-8",
            "device.yaml: skipped: cannot be read: it is a device, and not a regular file",
        ]
    );
}

#[test]
fn the_first_problems_are_named_and_the_rest_counted() {
    let place = TestFolder::new();
    place.write("a.yaml", &"kind: Pod\n---\n".repeat(150));
    place.write("b.yaml", &service("b", "10.0.0.2"));
    let (events, problems) = place.fresh();
    assert_eq!(services(&events), ["d/b 10.0.0.2"]);
    assert_eq!(problems.len(), 101);
    assert!(
        problems[99].starts_with("a.yaml, document 100 (line 198): skipped: "),
        "{}",
        problems[99]
    );
    assert_eq!(problems[100], "a.yaml: and 50 more");
}

/// One object of each kind that NetworkPolicies need, and a Service.
const SHOP: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1, namespace: shop, labels: {app: web}}
  spec: {nodeName: n1, containers: [{ports: [{name: http, containerPort: 8080}]}]}
  status: {podIPs: [{ip: 10.1.0.1}]}
- {apiVersion: v1, kind: Pod, metadata: {name: done, namespace: shop}, status: {phase: Failed}}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: web, namespace: shop}
  spec:
    podSelector: {matchLabels: {app: web}}
    ingress: [{from: [{podSelector: {}}, {podSelectr: {}}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 172.30.0.1, ports: [{port: 80}]}
";

#[test]
fn objects_of_network_policies() {
    let place = TestFolder::new();
    place.write("all.yaml", SHOP);
    let (events, problems) = place.fresh();
    let text = |event: &Event| format!("{event:?}");
    let (listed, sent): (Vec<_>, _) =
        events.iter().map(text).partition(|text: &String| text.starts_with("Listed("));
    assert_eq!((listed.len(), sent.len()), (8, 4));
    let expected = ["Namespace(\"shop\", Some(", "ClusterPod(", "NetworkPolicy(", "Service("];
    for (sent, expected) in sent.iter().zip(expected) {
        assert!(sent.starts_with(expected), "{sent}");
    }
    assert_eq!(
        problems,
        ["all.yaml, document 1, item 3 (line 1): NetworkPolicy shop/web: \
             spec.ingress[0].from[1].podSelectr \"{}\": not understood: the peer is left out"]
    );
}

#[test]
fn objects_of_a_feature_that_is_off_are_ignored() {
    let place = TestFolder::new();
    place.write("all.yaml", SHOP);
    let off = |services, network_policy| {
        let features = Features { services, network_policy, other_nodes: false };
        let (events, problems) = read(&ManifestsConfig { features, ..place.config() }).unwrap();
        let listed = events.iter().filter(|event| matches!(event, Event::Listed(_))).count();
        (events.len() - listed, listed, problems.len())
    };
    assert_eq!(off(true, false), (1, 4, 0));
    assert_eq!(off(false, true), (3, 5, 1));
    assert_eq!(off(false, false), (0, 0, 0));
}
