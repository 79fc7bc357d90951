//! The machine as its processes see it.

#[cfg(test)]
mod engine;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod sharing;
