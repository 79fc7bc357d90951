//! Every page as a person sees it. The transcripts were written first, by hand; the answers they
//! are made from are the scheduler's own, kept by its tests. `UPDATE_TRANSCRIPTS=1` writes anew
//! what is printed, to be looked at.

#[cfg(test)]
mod deploy;
#[cfg(test)]
mod doctors;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod telling;
