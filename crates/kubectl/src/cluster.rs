//! The cluster a person means, as with kubectl: kubeconfig, context, namespace.

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::de::DeserializeOwned;

use crate::options::Place;

/// A cluster, and who we are there.
#[derive(Clone)]
pub struct Cluster {
    /// The way to its API server.
    pub client: Client,
    /// Who we are.
    pub config: Config,
    /// The namespace of pods that are named without one.
    pub namespace: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Finds it. Nothing is sent yet.
    pub async fn find(place: &Place) -> anyhow::Result<Self> {
        let options = KubeConfigOptions {
            context: place.context.clone(),
            cluster: place.cluster.clone(),
            user: place.user.clone(),
        };
        let chosen = place.context.is_some() || place.cluster.is_some() || place.user.is_some();
        let mut config = match &place.kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path)
                    .with_context(|| format!("read {}", path.display()))?;
                Config::from_custom_kubeconfig(read, &options).await?
            }
            None if chosen => Config::from_kubeconfig(&options).await?,
            None => Config::infer().await.context("found no kubeconfig; give --kubeconfig")?,
        };
        config.connect_timeout = Some(std::time::Duration::from_secs(5));
        config.read_timeout = Some(std::time::Duration::from_secs(30));
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self { client: Client::try_from(config.clone())?, config, namespace })
    }

    /// What the API server says at `path`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, kube::Error> {
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    /// The same, and nothing where there is no such object.
    pub async fn find_one<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Option<T>, kube::Error> {
        match self.get(path).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An API server's error as one sentence.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                let cause_text = cause.to_string();
                if !text.contains(&cause_text) {
                    text = format!("{text}: {cause_text}");
                }
                source = cause.source();
            }
            text
        }
    }
}
