//! The HTTP door: routes, limits, who may call. What is behind it knows nothing of HTTP.

mod gate;
mod listening;
mod reading;
mod routes;

pub(crate) use gate::error;
pub use gate::{Gate, Limits};
pub use listening::{ListenError, Listener, Mode, serve};
pub use reading::Reading;
pub(crate) use routes::finish;
pub use routes::{Doors, admission_routes, health_routes, read_routes, verb_routes};
