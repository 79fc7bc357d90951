//! The simulated GPUs of a machine, shared by all its processes.
