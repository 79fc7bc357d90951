//! What the ledger counts, keeps and gives back.

mod build;
mod counting;
mod quotas;
mod reserving;
