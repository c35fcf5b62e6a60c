//! The commands that linkerd-init executes in a pod.

use std::process::{Command, Stdio};

use crate::node::cni::Namespace;

/// A command of linkerd-init: what follows `iptables -t nat`, and the comment of the rule.
pub type InitRule<'a> = (&'a str, &'a str);

/// The commands of linkerd-init without options, in its order.
pub const DEFAULT: [InitRule<'static>; 10] = [
    ("-N PROXY_INIT_REDIRECT", ""),
    (
        "-A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 4190,4191,4567:4568 -j RETURN",
        "ignore-port-4190,4191,4567:4568",
    ),
    (
        "-A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port 4143",
        "redirect-all-incoming-to-proxy-port",
    ),
    ("-A PREROUTING -j PROXY_INIT_REDIRECT", "install-proxy-init-prerouting"),
    ("-N PROXY_INIT_OUTPUT", ""),
    ("-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN", "ignore-proxy-user-id"),
    ("-A PROXY_INIT_OUTPUT -o lo -j RETURN", "ignore-loopback"),
    (
        "-A PROXY_INIT_OUTPUT -p tcp --match multiport --dports 4567:4568 -j RETURN",
        "ignore-port-4567:4568",
    ),
    (
        "-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port 4140",
        "redirect-all-outgoing-to-proxy-port",
    ),
    ("-A OUTPUT -j PROXY_INIT_OUTPUT", "install-proxy-init-output"),
];

/// Executes linkerd-init's commands in `pod`, each as a process of its own, for both versions of
/// IP.
pub fn linkerd_init(pod: &Namespace, commands: &[InitRule<'_>]) {
    for program in ["iptables", "ip6tables"] {
        for (command, comment) in commands {
            let mut arguments = vec!["-t", "nat"];
            arguments.extend(command.split(' '));
            let comment = format!("proxy-init/{comment}");
            if command.starts_with("-A") {
                arguments.extend(["-m", "comment", "--comment", &comment]);
            }
            let mut command = Command::new(program);
            command.args(&arguments).stdout(Stdio::null()).stderr(Stdio::piped());
            let output = pod.spawn(command).wait_with_output().expect("it ends");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {error}");
        }
    }
}
