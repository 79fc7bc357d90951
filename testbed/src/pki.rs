//! Certificates and kubeconfigs: one authority, and an identity for each component.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::control::{API_ADDRESS, SERVICE_ADDRESS};
use crate::layout::{Layout, write};

/// The cluster's certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// Who a certificate is for.
struct Subject<'a> {
    name: &'a str,
    group: Option<&'a str>,
    /// DNS names and addresses, for one that serves.
    serves: &'a [&'a str],
}

impl Authority {
    /// Makes the authority and every certificate and kubeconfig of the control plane.
    pub(crate) fn create(layout: &Layout) -> anyhow::Result<Self> {
        let authority = Self::new().context("cannot make the certificate authority")?;
        let pki = layout.pki();
        write(&pki.join("ca.crt"), authority.certificate.as_bytes())?;
        write(&pki.join("ca.key"), authority.issuer.key().serialize_pem().as_bytes())?;
        let accounts = KeyPair::generate().context("cannot make the key of service accounts")?;
        write(&pki.join("sa.key"), accounts.serialize_pem().as_bytes())?;
        write(&pki.join("sa.pub"), accounts.public_key_pem().as_bytes())?;

        let api = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "127.0.0.1",
            API_ADDRESS,
            SERVICE_ADDRESS,
        ];
        let masters = Some("system:masters");
        let subjects = [
            ("apiserver", Subject { name: "kube-apiserver", group: None, serves: &api }),
            (
                "apiserver-kubelet-client",
                Subject { name: "kube-apiserver", group: masters, serves: &[] },
            ),
            (
                "front-proxy-client",
                Subject { name: "front-proxy-client", group: None, serves: &[] },
            ),
            ("admin", Subject { name: "admin", group: masters, serves: &[] }),
        ];
        for (file, subject) in &subjects {
            authority.issue(&pki, file, subject)?;
        }
        for (file, name) in [
            ("controller-manager", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("kube-proxy", "system:kube-proxy"),
        ] {
            authority.issue(&pki, file, &Subject { name, group: None, serves: &[] })?;
        }
        for user in ["admin", "controller-manager", "scheduler", "kube-proxy"] {
            kubeconfig(layout, user, &inside(), &layout.kubeconfig_inside(user))?;
        }
        Ok(authority)
    }

    fn new() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, "nanogpu testbed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// A node's certificate and kubeconfig.
    pub(crate) fn add_node(
        &self,
        layout: &Layout,
        node: &str,
        address: &str,
    ) -> anyhow::Result<()> {
        let name = format!("system:node:{node}");
        let serves = [node, "localhost", "127.0.0.1", address];
        let subject = Subject { name: &name, group: Some("system:nodes"), serves: &serves };
        self.issue(&layout.pki(), node, &subject)?;
        kubeconfig(layout, node, &inside(), &layout.kubeconfig_inside(node))
    }

    fn issue(&self, pki: &Path, file: &str, subject: &Subject) -> anyhow::Result<()> {
        let (certificate, key) = self
            .sign(subject)
            .with_context(|| format!("cannot make the certificate of {}", subject.name))?;
        write(&pki.join(format!("{file}.crt")), certificate.as_bytes())?;
        write(&pki.join(format!("{file}.key")), key.as_bytes())
    }

    fn sign(&self, subject: &Subject) -> Result<(String, String), rcgen::Error> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, subject.name);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        for name in subject.serves {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into()?),
            });
        }
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// The API server as the cluster's own components reach it.
fn inside() -> String {
    format!("https://{API_ADDRESS}:6443")
}

/// Writes a kubeconfig for `user`, who reaches the API server at `server`.
pub(crate) fn kubeconfig(
    layout: &Layout,
    user: &str,
    server: &str,
    file: &Path,
) -> anyhow::Result<()> {
    let pki = layout.pki();
    let read = |name: String| -> anyhow::Result<String> {
        let path = pki.join(name);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes))
    };
    let name = layout.name();
    // JSON is YAML too.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": server,
            "certificate-authority-data": read("ca.crt".to_owned())?,
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": read(format!("{user}.crt"))?,
            "client-key-data": read(format!("{user}.key"))?,
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    });
    write(file, &serde_json::to_vec_pretty(&config)?)
}
