//! Where certificates of our own making are kept, and who is told to trust them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;

/// Why certificates could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Another replica wrote it in between: read it again.
    #[error("another replica has just written the secret")]
    Raced,
    /// The API server refused or was away.
    #[error("the API server did not take it")]
    Api(#[from] Error),
}

/// What a Secret holds, with its version; nothing if there is none.
pub async fn read_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<(String, BTreeMap<String, Vec<u8>>)>, SecretError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let Some(secret) = secrets.get_opt(name).await? else { return Ok(None) };
    let data = secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)).collect();
    Ok(Some((secret.metadata.resource_version.unwrap_or_default(), data)))
}

/// Writes a Secret: a new one if `version` is nothing, else only if it still is that version.
pub async fn write_secret(
    client: &Client,
    namespace: &str,
    name: &str,
    version: Option<String>,
    data: BTreeMap<String, Vec<u8>>,
) -> Result<(), SecretError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: version.clone(),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(data.into_iter().map(|(k, v)| (k, ByteString(v))).collect()),
        ..Secret::default()
    };
    let params = PostParams::default();
    let written = match version {
        None => secrets.create(&params, &secret).await,
        Some(_) => secrets.replace(name, &params, &secret).await,
    };
    match written {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 409 => Err(SecretError::Raced),
        Err(error) => Err(error.into()),
    }
}

/// Tells the API server to trust `authority` (PEM) when it calls the webhooks of `name`.
/// Configurations that do not exist are left alone.
pub async fn trust_in_webhooks(
    client: &Client,
    name: &str,
    authority: &str,
) -> Result<(), SecretError> {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(found) = mutating.get_opt(name).await? {
        let names = found.webhooks.into_iter().flatten().map(|hook| hook.name);
        let patch = Patch::Strategic(trusting(names, authority));
        mutating.patch(name, &PatchParams::default(), &patch).await?;
    }
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(found) = validating.get_opt(name).await? {
        let names = found.webhooks.into_iter().flatten().map(|hook| hook.name);
        let patch = Patch::Strategic(trusting(names, authority));
        validating.patch(name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

fn trusting(names: impl Iterator<Item = String>, authority: &str) -> serde_json::Value {
    let bundle = ByteString(authority.as_bytes().to_vec());
    let hooks: Vec<_> =
        names.map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}})).collect();
    json!({"webhooks": hooks})
}
