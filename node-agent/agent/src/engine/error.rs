//! Why a part of the plan is not in the kernel.

use thiserror::Error;

use denizen_backend::chosen::ChosenError;
use denizen_backend::iptables::IptablesError;
use denizen_backend::ipvs::IpvsBackendError;
use denizen_model::Family;
use denizen_nft::{NftError, TableFamily};

/// Why a part of the plan is not in the kernel.
#[derive(Debug, Error)]
pub enum EngineError<E: std::error::Error + 'static> {
    /// The pod firewall's tables could not be programmed.
    #[error(transparent)]
    Firewall(#[from] NftError),
    /// Host ports' tables could not be programmed.
    #[error("host ports are not served as they should be")]
    HostPorts(#[source] NftError),
    /// The backend's rules could not be programmed.
    #[error(transparent)]
    Backend(E),
}

impl EngineError<ChosenError> {
    /// The families whose tables in nf_tables could not be programmed.
    pub fn families_in_nftables(&self) -> &'static [Family] {
        match self {
            Self::Firewall(error) | Self::HostPorts(error) => families(error),
            Self::Backend(error) => match error {
                ChosenError::Nftables(error)
                | ChosenError::Ports(error)
                | ChosenError::Iptables(IptablesError::Bridge(error))
                | ChosenError::Ipvs(IpvsBackendError::Nftables(error)) => families(error),
                ChosenError::Netlink(_) => &Family::BOTH,
                ChosenError::Iptables(IptablesError::Driver(_))
                | ChosenError::Ipvs(IpvsBackendError::Servers(_))
                | ChosenError::Servers(_) => &[],
            },
        }
    }
}

fn families(error: &NftError) -> &'static [Family] {
    match error.family() {
        Some(TableFamily::Ip | TableFamily::Arp) => &[Family::V4],
        Some(TableFamily::Ip6) => &[Family::V6],
        Some(TableFamily::Inet | TableFamily::Bridge) | None => &Family::BOTH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_for_the_family_of_its_table() {
        let raced = |family| NftError::Raced { family };
        let cases: [(EngineError<ChosenError>, &[Family]); 5] = [
            (EngineError::Firewall(raced(TableFamily::Ip6)), &[Family::V6]),
            (EngineError::Firewall(raced(TableFamily::Bridge)), &Family::BOTH),
            (EngineError::Backend(raced(TableFamily::Ip).into()), &[Family::V4]),
            (EngineError::HostPorts(raced(TableFamily::Inet)), &Family::BOTH),
            (EngineError::Backend(without_iptables().into()), &[]),
        ];
        for (error, expected) in cases {
            assert_eq!(error.families_in_nftables(), expected, "{error}");
        }
    }

    fn without_iptables() -> IptablesError {
        let source = std::io::ErrorKind::NotFound.into();
        let program = "iptables-restore".to_owned();
        denizen_iptables::IptablesError::Run { program, source }.into()
    }
}
