//! What the scheduler knows. One task changes it; everyone else reads what it publishes.

mod handle;
mod learning;
mod picture;
mod pods;
mod quotas;
mod sent;
mod writer;

pub use handle::{Handle, Reserved, Unreserved};
pub use picture::Picture;
pub use pods::{Pending, Pods};
pub use quotas::QuotaState;
pub use sent::Sent;
pub use writer::{Writer, WriterOptions};
