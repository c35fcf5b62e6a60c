//! What happens to connections to each frontend of each service.

mod decide;
mod external_addresses;
mod frontend;
mod health_check;
mod outcome;
mod permitted;
mod plan_inputs;
mod ranges;
mod remark;
mod selection;
mod service_plan;

pub(super) use decide::location;
pub use decide::{Settings, frontends};
pub use frontend::{Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade};
pub use health_check::{HealthCheck, HealthChecks, HealthPorts};
pub use outcome::{Endpoint, Endpoints, Outcome};
pub use permitted::PermittedRanges;
pub(super) use plan_inputs::PlanInputs;
pub use remark::Remark;
pub use selection::{EndpointSelection, NodeLocation, select, serving};
pub(super) use selection::{listed, ready};
pub use service_plan::{Conflict, ServicePlan};
