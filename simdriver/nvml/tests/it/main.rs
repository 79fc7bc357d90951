//! The library as its clients see it.

#[cfg(test)]
mod client;
#[cfg(test)]
mod exports;
