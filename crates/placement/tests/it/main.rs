//! What placement decides, as tables and sentences.

mod build;
mod choosing;
mod explaining;
mod ranking;
