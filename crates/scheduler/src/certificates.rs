//! Certificates of our own making: an authority, one for our servers, one for kube-scheduler.
//!
//! They live in a Secret that all replicas share. Whoever finds them old makes new ones; the
//! others read them. Old and new authority are trusted together for a while.

use std::collections::BTreeMap;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use time::{Duration, OffsetDateTime};

use crate::peers::PEER_NAME;

/// How long a certificate is valid, in days.
const VALID: i64 = 90;
/// How long before its end it is made anew, in days.
const RENEW: i64 = 30;
/// How long an authority is valid, in days.
const AUTHORITY_VALID: i64 = 5 * 365;
/// How long before its end an authority is made anew, in days.
const AUTHORITY_RENEW: i64 = 365;

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// They cannot be made.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// What is kept is damaged.
    #[error("the kept certificates lack {0}")]
    Lacks(&'static str),
    /// What is kept is no PEM.
    #[error("the kept certificates cannot be read")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// TLS does not take them.
    #[error("TLS does not take the certificates")]
    Tls(#[from] rustls::Error),
    /// Nobody could be verified by them.
    #[error("TLS does not take the authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// All that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// Whom to trust: the authority, and the one before it. PEM.
    pub authority: String,
    authority_key: String,
    authority_until: i64,
    server: String,
    server_key: String,
    /// kube-scheduler's certificate, PEM.
    pub client: String,
    /// kube-scheduler's key, PEM.
    pub client_key: String,
    until: i64,
}

impl Certificates {
    /// New ones, for servers that are reached by these names.
    pub fn make(names: &[String], now: OffsetDateTime) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let params = authority_params(now)?;
        let authority = params.self_signed(&key)?.pem();
        let mut made = Self {
            authority,
            authority_key: key.serialize_pem(),
            authority_until: (now + Duration::days(AUTHORITY_VALID)).unix_timestamp(),
            server: String::new(),
            server_key: String::new(),
            client: String::new(),
            client_key: String::new(),
            until: 0,
        };
        made.issue(names, now)?;
        Ok(made)
    }

    /// Those that somebody else made and renews: whom to trust, and who we are. PEM.
    pub fn of_others(authority: String, server: String, server_key: String) -> Self {
        Self {
            authority,
            authority_key: String::new(),
            authority_until: i64::MAX,
            server,
            server_key,
            client: String::new(),
            client_key: String::new(),
            until: i64::MAX,
        }
    }

    /// These, or new ones where they are old. Nothing: none is.
    pub fn renewed(
        &self,
        names: &[String],
        now: OffsetDateTime,
    ) -> Result<Option<Self>, CertificateError> {
        let left = |until: i64| Duration::seconds(until.saturating_sub(now.unix_timestamp()));
        if left(self.authority_until) < Duration::days(AUTHORITY_RENEW) {
            let mut made = Self::make(names, now)?;
            // Whoever was told of the old one only must still be able to reach us.
            let before = first_pem(&self.authority);
            made.authority = format!("{}{before}", made.authority);
            return Ok(Some(made));
        }
        if left(self.until) < Duration::days(RENEW) {
            let mut made = self.clone();
            made.issue(names, now)?;
            return Ok(Some(made));
        }
        Ok(None)
    }

    fn issue(&mut self, names: &[String], now: OffsetDateTime) -> Result<(), CertificateError> {
        let key = KeyPair::from_pem(&self.authority_key)?;
        let issuer = Issuer::new(authority_params(now)?, key);
        let mut all = names.to_vec();
        all.push(PEER_NAME.to_owned());
        let usage = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (self.server, self.server_key) = leaf("nanogpu-scheduler", &all, &usage, now, &issuer)?;
        let usage = [ExtendedKeyUsagePurpose::ClientAuth];
        (self.client, self.client_key) = leaf("kube-scheduler", &[], &usage, now, &issuer)?;
        self.until = (now + Duration::days(VALID)).unix_timestamp();
        Ok(())
    }

    /// As a Secret keeps them.
    pub fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let text = |(key, value): (&str, String)| (key.to_owned(), value.into_bytes());
        [
            ("ca.crt", self.authority.clone()),
            ("ca.key", self.authority_key.clone()),
            ("ca.until", self.authority_until.to_string()),
            ("tls.crt", self.server.clone()),
            ("tls.key", self.server_key.clone()),
            ("client.crt", self.client.clone()),
            ("client.key", self.client_key.clone()),
            ("until", self.until.to_string()),
        ]
        .map(text)
        .into()
    }

    /// As a Secret kept them.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, CertificateError> {
        let text = |key: &'static str| {
            let bytes = data.get(key).ok_or(CertificateError::Lacks(key))?;
            String::from_utf8(bytes.clone()).map_err(|_| CertificateError::Lacks(key))
        };
        let number =
            |key: &'static str| text(key)?.parse().map_err(|_| CertificateError::Lacks(key));
        Ok(Self {
            authority: text("ca.crt")?,
            authority_key: text("ca.key")?,
            authority_until: number("ca.until")?,
            server: text("tls.crt")?,
            server_key: text("tls.key")?,
            client: text("client.crt")?,
            client_key: text("client.key")?,
            until: number("until")?,
        })
    }

    /// For a server that lets in only who has a certificate of ours.
    pub fn mutual(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots()?.into(), provider())
                .build()?;
        let (chain, key) = self.identity()?;
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = builder.with_client_cert_verifier(verifier);
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = ["h2", "http/1.1"].map(|name| name.as_bytes().to_vec()).into();
        Ok(Arc::new(config))
    }

    /// For a server that knows its callers otherwise.
    pub fn one_sided(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let (chain, key) = self.identity()?;
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions()?;
        Ok(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key)?))
    }

    /// For calls to another replica.
    pub fn calling(&self) -> Result<Arc<ClientConfig>, CertificateError> {
        let (chain, key) = self.identity()?;
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(self.roots()?);
        Ok(Arc::new(builder.with_client_auth_cert(chain, key)?))
    }

    fn roots(&self) -> Result<RootCertStore, CertificateError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            roots.add(certificate?)?;
        }
        Ok(roots)
    }

    fn identity(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CertificateError> {
        let chain = CertificateDer::pem_slice_iter(self.server.as_bytes());
        let chain = chain.collect::<Result<_, _>>()?;
        Ok((chain, PrivateKeyDer::from_pem_slice(self.server_key.as_bytes())?))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn authority_params(now: OffsetDateTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "nanogpu-scheduler-authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    // Clocks of others may be behind ours.
    params.not_before = now - Duration::days(1);
    params.not_after = now + Duration::days(AUTHORITY_VALID);
    Ok(params)
}

fn leaf(
    name: &str,
    names: &[String],
    usage: &[ExtendedKeyUsagePurpose],
    now: OffsetDateTime,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = usage.to_vec();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = now - Duration::days(1);
    params.not_after = now + Duration::days(VALID);
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

/// The first certificate of a bundle: the one before the last is trusted, and no older one.
fn first_pem(bundle: &str) -> &str {
    let end = "-----END CERTIFICATE-----";
    bundle.find(end).map_or(bundle, |at| &bundle[..bundle.len().min(at + end.len() + 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_kept_and_renewed_before_their_end() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let names = ["svc.ns.svc".to_owned()];
        let made = Certificates::make(&names, now).unwrap();
        assert_eq!(Certificates::from_data(&made.to_data()).unwrap(), made);
        assert_eq!(made.renewed(&names, now).unwrap(), None);
        let later = made.renewed(&names, now + Duration::days(61)).unwrap().unwrap();
        assert_eq!(later.authority, made.authority);
        assert_ne!(later.server, made.server);
        let much_later =
            made.renewed(&names, now + Duration::days(5 * 365 - 300)).unwrap().unwrap();
        assert!(much_later.authority.ends_with(&made.authority));
        assert_eq!(much_later.authority.matches("BEGIN").count(), 2);
        for config in [made.mutual(), made.one_sided(), much_later.mutual()] {
            config.unwrap();
        }
        much_later.calling().unwrap();
    }

    #[test]
    fn a_clock_set_back_makes_no_new_ones() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let made = Certificates::make(&[], now).unwrap();
        for back in [Duration::hours(1), Duration::days(400), Duration::days(20_000)] {
            assert_eq!(made.renewed(&[], now - back).unwrap(), None);
        }
    }

    #[test]
    fn damaged_ones_are_told() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let mut data = Certificates::make(&[], now).unwrap().to_data();
        data.remove("tls.key");
        let error = Certificates::from_data(&data).unwrap_err();
        assert_eq!(error.to_string(), "the kept certificates lack tls.key");
    }
}
