//! Why a pod's request cannot be what its author meant. One sentence each, with the value.

use model::ContainerName;
use model::ids::Quoted;

/// A request that can never run as written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A quantity that is no number, negative or a fraction.
    #[error("container {container}: {resource} is {value}; it must be a whole number, 0 or more")]
    NotACount {
        /// Where.
        container: ContainerName,
        /// Which resource.
        resource: &'static str,
        /// What stands there.
        value: Quoted,
    },
    /// More than any card or node has.
    #[error(
        "container {container}: {resource} is {value}, which is more than any node has; {hint}"
    )]
    TooMuch {
        /// Where.
        container: ContainerName,
        /// Which resource.
        resource: &'static str,
        /// What stands there.
        value: Quoted,
        /// How the resource is counted.
        hint: &'static str,
    },
    /// Outside the values the dialect knows.
    #[error("container {container}: {resource} is {value}; it must be {must}")]
    OutOfRange {
        /// Where.
        container: ContainerName,
        /// Which resource.
        resource: &'static str,
        /// What stands there.
        value: u64,
        /// What would be right.
        must: &'static str,
    },
    /// A limit and a request that contradict each other.
    #[error(
        "container {container}: {resource} has limit {limit} but request {request}; they must be equal"
    )]
    Unequal {
        /// Where.
        container: ContainerName,
        /// Which resource.
        resource: &'static str,
        /// The limit.
        limit: Quoted,
        /// The request.
        request: Quoted,
    },
    /// One half of a request without the other.
    #[error("container {container} asks for {has} but not for {lacks}; a share needs both")]
    Half {
        /// Where.
        container: ContainerName,
        /// What is asked.
        has: &'static str,
        /// What is missing.
        lacks: &'static str,
    },
    /// Two dialects in one pod.
    #[error(
        "the pod asks for both {one} and {other}; all containers of a pod must use the names of one system"
    )]
    TwoDialects {
        /// A resource of one dialect.
        one: &'static str,
        /// A resource of another.
        other: &'static str,
    },
    /// An annotation whose value cannot be used.
    #[error("annotation {key} is {value}; it must be {must}")]
    Annotation {
        /// Which annotation.
        key: String,
        /// What stands there.
        value: Quoted,
        /// What would be right.
        must: String,
    },
    /// Selectors that no card can satisfy.
    #[error("the pod's annotations ask for {0} and exclude it too; no card can satisfy both")]
    SelectsNothing(Quoted),
}
