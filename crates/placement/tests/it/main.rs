//! What placement decides, as tables and sentences.

#[cfg(test)]
mod build;
mod choosing;
mod explaining;
mod policies;
mod gpu_manager;
mod machines;
mod preempting;
mod ranking;
mod topology;
