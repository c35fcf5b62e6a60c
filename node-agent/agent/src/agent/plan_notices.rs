//! Kubernetes events for changes of the plan.

use std::collections::BTreeSet;

use denizen_model::{Notice, NoticeReason, NoticeSubject};
use denizen_plan::{FirewallPlan, Plan, PlanChanges, PolicyTie, Remark};
use denizen_routing::SendNotice;

/// Sends an event for each problem that is new in the plan.
pub(super) struct PlanNotices {
    send: SendNotice,
    /// The ClusterNetworkPolicies that had the same priority as another at the last pass.
    ties: BTreeSet<PolicyTie>,
}

impl PlanNotices {
    pub fn new(send: SendNotice) -> Self {
        Self { send, ties: BTreeSet::new() }
    }

    /// Sends events about what is new: addresses that no Service may have, or that are too many for
    /// one Service, host ports that another pod already has, and ClusterNetworkPolicies that select
    /// the same pod with the same priority.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        for remark in &changes.remarks {
            let (service, reason) = match remark {
                Remark::NotPermitted { service, .. } => {
                    (service, NoticeReason::AddressNotPermitted)
                }
                Remark::TooManyAddresses { service, .. } => {
                    (service, NoticeReason::TooManyAddresses)
                }
                Remark::OpenFamily { .. }
                | Remark::OwnAddress { .. }
                | Remark::OwnRange { .. }
                | Remark::ShadowedCheck { .. }
                | Remark::UnknownScheduler { .. }
                | Remark::UnknownSchedulerFlag { .. } => continue,
            };
            let about = NoticeSubject::Service(service.clone());
            (self.send)(Notice { about, reason, text: remark.to_string() });
        }
        for remark in changes.host_ports.remarks.iter().filter(|remark| remark.is_warning()) {
            (self.send)(Notice {
                about: NoticeSubject::Node,
                reason: NoticeReason::HostPortConflict,
                text: remark.to_string(),
            });
        }
        if changes.cluster_network_policies || !changes.firewall.pod_rules.is_empty() {
            let ties = plan.firewall().map(FirewallPlan::ties).unwrap_or_default();
            ties.difference(&self.ties).flat_map(of_tie).for_each(|notice| (self.send)(notice));
            self.ties = ties;
        }
    }
}

/// One event for each of the policies.
fn of_tie(tie: &PolicyTie) -> impl Iterator<Item = Notice> {
    tie.policies.iter().map(|policy| Notice {
        about: NoticeSubject::ClusterNetworkPolicy(policy.clone()),
        reason: NoticeReason::SamePriority,
        text: tie.to_string(),
    })
}
