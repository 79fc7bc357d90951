//! What pods ask, dialect by dialect.

mod core_memory;
mod gpushare;
mod hami;
mod nano;
mod nobody;
mod roles;
mod vcuda;
mod vgpu_manager;
