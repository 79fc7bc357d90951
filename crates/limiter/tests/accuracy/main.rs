//! How much of a card containers get of what they asked for, over the simulated driver.

#[cfg(test)]
mod cells;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod neighbours;
#[cfg(test)]
mod processors;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tenant;
