use super::*;

fn environment(container_id: &str, if_name: &str, args: &str) -> Environment {
    let variable = |value: &str| Some(value.into()).filter(|value: &OsString| !value.is_empty());
    Environment {
        command: variable("ADD"),
        container_id: variable(container_id),
        netns: variable("/run/netns/a"),
        if_name: variable(if_name),
        args: variable(args),
    }
}

#[test]
fn names_follow_the_specification() {
    for good in ["a", "0", "3f1c", "a_b.c-d", "a..b", "A"] {
        assert!(is_name(good), "{good:?}");
    }
    for bad in ["", "_", ".", "..", "-a", "a/b", "a b", "a\n", "é", "a\0"] {
        assert!(!is_name(bad), "{bad:?}");
    }
    for good in ["eth0", "net1", "a.b", "...", "abcdefghijklmno"] {
        assert!(is_if_name(good).is_ok(), "{good:?}");
    }
    for bad in [".", "..", "a/b", "a:b", "a b", "a\t", "a\u{7f}", "abcdefghijklmnop"] {
        assert!(is_if_name(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_pod_comes_from_cni_args() {
    let full = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=a-1";
    let pod = |args: &str| {
        let attach = environment("c", "eth0", args).attach().unwrap();
        attach.pod.map(|pod| (pod.namespace, pod.name, pod.uid))
    };
    assert_eq!(pod(full), Some(("default".into(), "web-0".into(), Some("a-1".into()))));
    let older = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=;";
    assert_eq!(pod(older), Some(("default".into(), "web-0".into(), None)));
    for none in ["", ";", "A=b=c", "K8S_POD_NAME=web-0", "K8S_POD_NAMESPACE=;K8S_POD_NAME=web-0"] {
        assert_eq!(pod(none), None, "{none:?}");
    }
    for malformed in ["K8S_POD_NAME", "A=b;c"] {
        assert!(
            matches!(environment("c", "eth0", malformed).attach(), Err(CniError::Environment(_))),
            "{malformed}"
        );
    }
}

#[test]
fn variables_that_are_not_utf_8_are_named() {
    use std::os::unix::ffi::OsStringExt;
    let mut call = environment("c", "eth0", "");
    call.container_id = Some(OsString::from_vec(vec![0xff]));
    assert!(call.named().unwrap_err().to_string().starts_with("CNI_CONTAINERID is not UTF-8"));
}
