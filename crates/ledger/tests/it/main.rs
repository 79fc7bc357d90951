//! What the ledger counts, keeps and gives back.

#[cfg(test)]
mod build;
mod counting;
mod quotas;
mod reserving;
mod wiring;
