//! The versions of the CNI specification that this plugin supports.

/// A version of the specification, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CniVersion {
    /// 0.3.0: results with interfaces.
    V0_3_0,
    /// 0.3.1: chains.
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: no `version` beside an address.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

impl CniVersion {
    /// Every version, oldest first.
    pub const ALL: [CniVersion; 5] = [
        CniVersion::V0_3_0,
        CniVersion::V0_3_1,
        CniVersion::V0_4_0,
        CniVersion::V1_0_0,
        CniVersion::V1_1_0,
    ];

    /// The version to use if the caller names none.
    pub const NEWEST: CniVersion = CniVersion::V1_1_0;

    /// The version as text.
    pub fn name(self) -> &'static str {
        match self {
            CniVersion::V0_3_0 => "0.3.0",
            CniVersion::V0_3_1 => "0.3.1",
            CniVersion::V0_4_0 => "0.4.0",
            CniVersion::V1_0_0 => "1.0.0",
            CniVersion::V1_1_0 => "1.1.0",
        }
    }

    /// The version with this name.
    pub fn named(name: &str) -> Option<CniVersion> {
        CniVersion::ALL.into_iter().find(|version| version.name() == name)
    }

    /// Whether results of both versions have the same type. 1.0.0 changed it: no `version` beside
    /// an address.
    pub(crate) fn has_result_type_of(self, other: CniVersion) -> bool {
        (self < CniVersion::V1_0_0) == (other < CniVersion::V1_0_0)
    }

    /// All versions, separated by commas.
    pub(crate) fn list() -> String {
        CniVersion::ALL.map(CniVersion::name).join(", ")
    }
}
