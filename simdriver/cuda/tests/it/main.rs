//! The library as its clients load it.

#[cfg(test)]
#[macro_use]
mod driver;
#[cfg(test)]
mod graphs;
#[cfg(test)]
mod lookups;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod table;
