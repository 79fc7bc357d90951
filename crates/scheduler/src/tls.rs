//! The certificates we serve and call with, changed while we do: of our own making and kept in a
//! Secret, or of somebody else's (cert-manager's) and read from a folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum_server::tls_rustls::RustlsConfig;
use kubeapi::{Client, SecretError};
use time::OffsetDateTime;

use crate::certificates::Certificates;
use crate::options::Options;
use crate::peers::Calling;

/// How often certificates of our own are looked after.
const OWN: Duration = Duration::from_mins(10);
/// How often a folder is read: the kubelet changes a mounted Secret within a minute or two.
const FOLDER: Duration = Duration::from_secs(30);

/// What servers and callers use. It changes under them when certificates are renewed.
pub(crate) struct Tls {
    pub(crate) mutual: RustlsConfig,
    pub(crate) one_sided: RustlsConfig,
    pub(crate) calling: Calling,
}

impl Tls {
    /// Finds or makes certificates, and keeps looking after them.
    pub(crate) async fn start(options: &Options, client: Client) -> anyhow::Result<Self> {
        let current = first(options, &client).await?;
        let tls = Self {
            mutual: RustlsConfig::from_config(current.mutual()?),
            one_sided: RustlsConfig::from_config(current.one_sided()?),
            calling: Arc::new(ArcSwap::new(current.calling()?)),
        };
        let (mutual, one_sided) = (tls.mutual.clone(), tls.one_sided.clone());
        let keeper = Keeper {
            options: options.clone(),
            client,
            current,
            tls: Self { mutual, one_sided, calling: tls.calling.clone() },
        };
        tokio::spawn(keeper.run());
        Ok(tls)
    }

    /// Uses `new` from now on; connections that stand keep what they have.
    fn change(&self, new: &Certificates) -> anyhow::Result<()> {
        let (mutual, one_sided, calling) = (new.mutual()?, new.one_sided()?, new.calling()?);
        self.mutual.reload_from_config(mutual);
        self.one_sided.reload_from_config(one_sided);
        self.calling.store(calling);
        Ok(())
    }
}

struct Keeper {
    options: Options,
    client: Client,
    current: Certificates,
    tls: Tls,
}

impl Keeper {
    async fn run(mut self) {
        let from_folder = self.options.tls_folder.is_some();
        loop {
            // Who made the certificates tells whom to trust: elsewhere that is cert-manager.
            if !from_folder && let Err(error) = self.trust().await {
                tracing::warn!(%error, "the webhook's authority was not written");
            }
            tokio::time::sleep(if from_folder { FOLDER } else { OWN }).await;
            match again(&self.options, &self.client).await {
                Ok(new) if new != self.current => match self.tls.change(&new) {
                    Ok(()) => {
                        tracing::info!("certificates renewed");
                        self.current = new;
                    }
                    Err(error) => tracing::warn!(%error, "new certificates cannot be used"),
                },
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "certificates not looked after"),
            }
        }
    }

    async fn trust(&self) -> Result<(), SecretError> {
        let (name, authority) = (&self.options.webhook_name, &self.current.authority);
        kubeapi::trust_in_webhooks(&self.client, name, authority).await
    }
}

/// The certificates to begin with.
async fn first(options: &Options, client: &Client) -> anyhow::Result<Certificates> {
    for _ in 0..5 {
        match again(options, client).await {
            Err(error)
                if error
                    .downcast_ref::<SecretError>()
                    .is_some_and(|e| matches!(e, SecretError::Raced)) => {}
            other => return other,
        }
    }
    anyhow::bail!("the certificates' secret keeps changing")
}

/// The certificates as they are now; those of our own are made if there are none or they are old.
async fn again(options: &Options, client: &Client) -> anyhow::Result<Certificates> {
    if let Some(folder) = &options.tls_folder {
        return from_folder(folder);
    }
    let (namespace, name, names) = (&options.namespace, &options.tls_secret, &options.tls_names);
    let now = OffsetDateTime::now_utc();
    let (version, kept) = match kubeapi::read_secret(client, namespace, name).await? {
        Some((version, data)) => match Certificates::from_data(&data) {
            Ok(kept) => (Some(version), Some(kept)),
            Err(error) => {
                tracing::warn!(%error, "certificates made anew");
                (Some(version), None)
            }
        },
        None => (None, None),
    };
    let new = match &kept {
        Some(kept) => kept.renewed(names, now)?,
        None => Some(Certificates::make(names, now)?),
    };
    match (new, kept) {
        (Some(new), _) => {
            kubeapi::write_secret(client, namespace, name, version, new.to_data()).await?;
            Ok(new)
        }
        (None, Some(kept)) => Ok(kept),
        (None, None) => anyhow::bail!("there are no certificates"),
    }
}

/// What `folder` has, under the names that cert-manager gives.
fn from_folder(folder: &Path) -> anyhow::Result<Certificates> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(Certificates::of_others(read("ca.crt")?, read("tls.crt")?, read("tls.key")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_read_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let write = |made: &Certificates| {
            for (name, bytes) in made.to_data() {
                std::fs::write(folder.path().join(name), bytes).unwrap();
            }
        };
        let error = from_folder(folder.path()).unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
        let now = OffsetDateTime::now_utc();
        let make = || Certificates::make(&["localhost".to_owned()], now).unwrap();
        write(&make());
        let first = from_folder(folder.path()).unwrap();
        for config in [first.mutual(), first.one_sided()] {
            config.unwrap();
        }
        first.calling().unwrap();
        assert_eq!(from_folder(folder.path()).unwrap(), first);
        write(&make());
        assert_ne!(from_folder(folder.path()).unwrap(), first, "a renewal is seen");
    }
}
