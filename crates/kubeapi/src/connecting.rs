//! Finding the API server: a kubeconfig, or the pod's own service account.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Why there is no connection to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// Neither a kubeconfig nor a service account.
    #[error("found neither a kubeconfig nor a service account; give --kubeconfig")]
    Nowhere(#[from] kube::config::InferConfigError),
    /// The address given is none.
    #[error("--master is no address")]
    Master(#[source] http::uri::InvalidUri),
    /// TLS or the proxy cannot be set up.
    #[error("the connection to the API server cannot be set up")]
    Setup(#[from] kube::Error),
}

/// A client for the cluster of `kubeconfig`, else of `$KUBECONFIG`, else of the pod we run in.
///
/// Requests are not repeated behind our back: whoever sends one knows best whether it may have
/// arrived.
pub async fn connect(
    kubeconfig: Option<&Path>,
    master: Option<&str>,
) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await?,
    };
    if let Some(master) = master {
        config.cluster_url = master.parse().map_err(ConnectError::Master)?;
    }
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(Client::try_from(config)?)
}
