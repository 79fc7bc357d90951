//! Requests that can never run as written, each with the sentence its author reads.

mod core_limit;
mod mixtures;
mod policies;
mod quantities;
mod ranges;
mod selectors;
