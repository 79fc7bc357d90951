//! nanogpu as an operator gets it: the chart is checked, installed by helm on two real nodes, used,
//! upgraded and taken away, and what runs does not notice.

#[cfg(test)]
mod agents;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod checking;
#[cfg(test)]
mod living;
#[cfg(test)]
mod numbers;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod schemas;
