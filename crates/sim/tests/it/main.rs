//! The simulator held to its protocol, on worlds small enough to be worked out by hand.

#[cfg(test)]
mod build;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod generating;
#[cfg(test)]
mod nearness;
#[cfg(test)]
mod outputs;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod states;
#[cfg(test)]
mod what_if;
