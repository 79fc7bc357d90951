//! The library as containers load it, over the simulated driver.

#[cfg(test)]
#[macro_use]
mod rig;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod captures;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod covered;
#[cfg(test)]
mod elf;
#[cfg(test)]
mod forks;
#[cfg(test)]
mod genuine;
#[cfg(test)]
mod graph_memory;
#[cfg(test)]
mod lookups;
#[cfg(test)]
mod neighbours;
#[cfg(test)]
mod others;
#[cfg(test)]
mod overhead;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod places;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod smoke;
#[cfg(test)]
mod view;
