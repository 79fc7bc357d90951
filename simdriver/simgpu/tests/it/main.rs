//! The program, and programs of others on what it makes.

#[cfg(test)]
mod clients;
#[cfg(test)]
mod command;
