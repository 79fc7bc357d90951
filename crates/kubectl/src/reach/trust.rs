//! Which certificate of the scheduler is believed.
//!
//! The scheduler is its own authority, and writes that authority into its webhook's configuration.
//! Who may read that checks against it. A tunnel ends in the pod that the API server named,
//! whatever the certificate says, so there it is enough that the connection is encrypted; at an
//! address somebody typed, it is not.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::SCHEDULER;
use crate::cluster::Cluster;
use crate::options::Place;

/// For a pod that the API server named.
pub(super) async fn through_a_tunnel(
    cluster: &Cluster,
    place: &Place,
) -> anyhow::Result<Arc<ClientConfig>> {
    match authority(cluster, place).await? {
        Some(pem) => checked(&pem),
        None => Ok(unchecked()),
    }
}

/// For an address that somebody typed.
pub(super) async fn at_an_address(
    cluster: &Cluster,
    place: &Place,
) -> anyhow::Result<Arc<ClientConfig>> {
    if place.insecure_server {
        return Ok(unchecked());
    }
    match authority(cluster, place).await? {
        Some(pem) => checked(&pem),
        None => bail!(
            "who may vouch for the scheduler is not known: give --server-ca, or --insecure-server"
        ),
    }
}

/// The scheduler's authority: as given, else as its webhook says.
async fn authority(cluster: &Cluster, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
    if let Some(path) = &place.server_ca {
        return Ok(Some(std::fs::read(path).with_context(|| format!("read {}", path.display()))?));
    }
    let path =
        format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}");
    // Whoever may not read it goes without.
    let webhook: Option<MutatingWebhookConfiguration> = cluster.get(&path).await.ok();
    let mut webhooks = webhook.into_iter().flat_map(|it| it.webhooks.unwrap_or_default());
    Ok(webhooks.find_map(|webhook| webhook.client_config.ca_bundle).map(|bundle| bundle.0))
}

fn checked(pem: &[u8]) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.context("the scheduler's authority is no PEM")?)?;
    }
    if roots.is_empty() {
        bail!("the scheduler's authority has no certificate in it");
    }
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

fn unchecked() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let any = Arc::new(Any(provider));
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(any);
    Arc::new(builder.with_no_client_auth())
}

/// Believes any certificate, but not a broken signature.
#[derive(Debug)]
struct Any(Arc<CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _end: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
