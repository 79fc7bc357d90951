//! Turns on a card, in virtual time: what containers get of what they asked for.

#[cfg(test)]
mod card;
#[cfg(test)]
mod shares;
