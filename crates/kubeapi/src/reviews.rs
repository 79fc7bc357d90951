//! Who is this, and may they? Asked of the API server, so that its users and roles are ours.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

/// Someone the API server knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// Their name.
    pub name: String,
    user: UserInfo,
}

/// What they want to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum May {
    /// See pods of one namespace.
    SeePods(String),
    /// See pods of all namespaces.
    SeeAllPods,
    /// See nodes.
    SeeNodes,
}

/// Why a caller is turned away.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// No token, or one the API server does not know.
    #[error("a Kubernetes token is needed: send it as Authorization: Bearer <token>")]
    Unknown,
    /// The API server could not be asked.
    #[error("the API server could not say who is asking")]
    Unasked(#[from] kube::Error),
}

/// Asks the API server, and remembers its answers for a little while.
pub struct Reviews {
    client: Client,
    // Answers only; never held over an await.
    known: Mutex<HashMap<String, (Instant, Caller)>>,
    allowed: Mutex<HashMap<(String, May), (Instant, bool)>>,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

/// How long an answer is remembered: a person clicking through a page asks once.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many are: a flood of made-up tokens must not fill the memory.
const MOST: usize = 1000;

impl Reviews {
    /// Asks through `client`.
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default(), allowed: Mutex::default() }
    }

    /// Whose token this is.
    pub async fn who(&self, token: &str) -> Result<Caller, ReviewError> {
        if let Some(caller) = remembered(&self.known, &token.to_owned()) {
            return Ok(caller);
        }
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let user = user.ok_or(ReviewError::Unknown)?;
        let caller = Caller { name: user.username.clone().unwrap_or_default(), user };
        remember(&self.known, token.to_owned(), caller.clone());
        Ok(caller)
    }

    /// Whether `caller` may.
    pub async fn may(&self, caller: &Caller, may: &May) -> Result<bool, ReviewError> {
        let key = (caller.name.clone(), may.clone());
        if let Some(allowed) = remembered(&self.allowed, &key) {
            return Ok(allowed);
        }
        let (resource, namespace) = match may {
            May::SeePods(namespace) => ("pods", Some(namespace.clone())),
            May::SeeAllPods => ("pods", None),
            May::SeeNodes => ("nodes", None),
        };
        let user = caller.user.clone();
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            resource_attributes: Some(ResourceAttributes {
                verb: Some("list".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some(resource.to_owned()),
                namespace,
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        remember(&self.allowed, key, allowed);
        Ok(allowed)
    }
}

fn remembered<K: std::hash::Hash + Eq, V: Clone>(
    all: &Mutex<HashMap<K, (Instant, V)>>,
    key: &K,
) -> Option<V> {
    let all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, value) = all.get(key)?;
    (at.elapsed() < REMEMBERED).then(|| value.clone())
}

fn remember<K: std::hash::Hash + Eq, V>(all: &Mutex<HashMap<K, (Instant, V)>>, key: K, value: V) {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MOST {
        all.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
    }
    if all.len() < MOST {
        all.insert(key, (Instant::now(), value));
    }
}
