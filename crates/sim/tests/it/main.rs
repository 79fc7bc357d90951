//! The simulator held to its protocol, on worlds small enough to be worked out by hand.

mod build;
mod commands;
mod generating;
mod outputs;
mod protocol;
mod states;
mod what_if;
