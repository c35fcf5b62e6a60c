//! `kubectl denizen`: what the agents of all nodes say, in one answer.
//!
//! It decides nothing about packets: the agents do. It finds them, asks them through the API server
//! with the operator's own rights, and puts together what they say. Who does not answer is a part of
//! every answer.
//!
//! | module | knows |
//! | --- | --- |
//! | [`cli`] | the command line, and exit codes |
//! | `completion` | what kubectl completes |
//! | `cluster` | kubeconfig, nodes, and which pod is a node's agent |
//! | `objects` | the few fields of Kubernetes objects that count |
//! | `session` | one conversation with one agent |
//! | `survey` | the same question to all, so many at once, until the deadline |
//! | `finding` | equal texts of many nodes, once |
//! | `output` | tables, JSON, and who did not answer |
//! | the others | a verb each |

pub mod cli;
mod cluster;
mod completion;
mod finding;
mod objects;
mod output;
mod session;
mod survey;
mod verb;
