//! Every dialect, told as pods: what is read, what is refused and how, what is written, and what
//! is recognised of the systems that were there before.
#![forbid(unsafe_code)]

mod common;
mod examples;
mod fuzz;
mod kubernetes;
mod observing;
mod reading;
mod refusing;
mod writing;
