//! What is asked for. Pure.
//!
//! The selectors are kube-proxy's: what this node would ignore anyway is not even sent to it.
//! (Before that filter, headless slices alone were about 1 TB of watch traffic a day in one
//! cluster: kubernetes #81060.)

use kube::api::{ListParams, WatchParams};
use kube::core::Request;

use crate::model::Listing;
use crate::source::object::Kind;

/// Objects in one page of a list, as client-go's.
const PAGE: u32 = 500;

impl Kind {
    /// Which first list this kind's is.
    pub(super) fn listing(self) -> Listing {
        match self {
            Self::Service => Listing::Services,
            Self::EndpointSlice => Listing::Slices,
            Self::Node => Listing::Node,
            Self::ServiceCidr => Listing::ServiceCidrs,
        }
    }

    /// Where the API serves this kind, of all namespaces.
    pub(super) fn request(self) -> Request {
        Request::new(match self {
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node => "/api/v1/nodes",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        })
    }

    /// A page of the list of those with these [`Self::fields`].
    pub(super) fn page(self, fields: Option<String>, continue_token: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.labels(),
            field_selector: fields,
            limit: Some(PAGE),
            continue_token,
            ..ListParams::default()
        }
    }

    /// A watch that ends after so many seconds; with `initial`, all that exists comes first
    /// (KEP-3157).
    pub(super) fn watch(self, fields: Option<String>, seconds: u32, initial: bool) -> WatchParams {
        WatchParams {
            label_selector: self.labels(),
            field_selector: fields,
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: initial,
        }
    }

    fn labels(self) -> Option<String> {
        match self {
            Self::Service => Some("!service.kubernetes.io/service-proxy-name".to_owned()),
            Self::EndpointSlice => Some(
                "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
                    .to_owned(),
            ),
            Self::Node | Self::ServiceCidr => None,
        }
    }

    /// What is asked of an object's fields.
    pub(super) fn fields(self, node_name: &str) -> Option<String> {
        match self {
            Self::Service => Some("spec.clusterIP!=None".to_owned()),
            Self::Node => Some(format!("metadata.name={node_name}")),
            Self::EndpointSlice | Self::ServiceCidr => None,
        }
    }
}
