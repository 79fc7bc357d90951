//! The HTTP door: routes, limits, who may call. What is behind it knows nothing of HTTP.

mod beside;
mod gate;
mod listening;
mod profile;
mod profiling;
mod reading;
mod routes;

pub use crate::api::Live;
pub use beside::Beside;
pub(crate) use gate::error;
pub use gate::{Gate, Limits};
pub use listening::{ListenError, Listener, Mode, serve, wait_until_free};
pub use profile::Profile;
pub use profiling::profile_routes;
pub use reading::Reading;
pub(crate) use routes::finish;
pub use routes::{Doors, admission_routes, health_routes, read_routes, verb_routes};
