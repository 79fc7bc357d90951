//! What the scheduler knows. One task changes it; everyone else reads what it publishes.

mod learning;
mod picture;
mod pods;
mod quotas;
mod writer;

pub use picture::Picture;
pub use pods::{Pending, Pods};
pub use writer::{Handle, Reserved, Unreserved, Writer, WriterOptions};
