//! A real Kubernetes on one machine.
