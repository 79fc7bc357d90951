//! What placement decides, as tables and sentences.

#[cfg(test)]
mod build;
mod choosing;
mod explaining;
mod gpu_manager;
mod machines;
mod policies;
mod preempting;
mod ranking;
mod topology;
