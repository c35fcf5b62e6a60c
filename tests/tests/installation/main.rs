//! What an operator installs: the files of `conf/`, the plugin's configuration, what the programs
//! may do, and all of it under a real container runtime.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod archive;
mod backends;
mod bird;
mod check;
mod completions;
mod conf;
mod containerd;
mod documents;
mod helm;
mod install_cni;
mod other_plugins;
mod privileges;
mod programs;
mod publish;
