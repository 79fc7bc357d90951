//! Asking kube-scheduler how it is, and nanogpu-scheduler whether it answers its verbs.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};
use serde_json::Value;

use crate::Say;
use crate::journal::Digest;
use crate::options::Checking;
use crate::watching::Seen;

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nanogpu-scheduler may take to answer, if not even less is asked for: it may just be
/// starting, or the node learning behind which address it is.
const STARTING: Duration = Duration::from_secs(30);
/// How long to wait before nanogpu-scheduler is asked again.
const PAUSE: Duration = Duration::from_millis(500);
/// What is asked of nanogpu-scheduler: a pod that asks for nothing, on no node. It remembers nothing.
const NOTHING: &str = r#"{"Pod":{"metadata":{"name":"nanogpu-install","namespace":"kube-system","uid":"nanogpu-install"},"spec":{"containers":[]}},"NodeNames":[]}"#;

/// How to speak TLS, and to whom.
type Tls = (Arc<ClientConfig>, ServerName<'static>);

/// An address, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Address {
    secure: bool,
    host: String,
    port: u16,
    path: String,
}

struct Answer {
    status: u16,
    body: String,
    certificate: Option<Digest>,
}

/// Looks at kube-scheduler's health. Its certificate is made by itself for nobody to check; it is
/// believed, because all it can say is that it is well.
pub fn health(url: &str) -> anyhow::Result<Seen> {
    let address = Address::read(url)?;
    ensure!(
        address.secure,
        "`{url}`: kube-scheduler says how it is over https only, and by its certificate when it was started"
    );
    let name = name_of(&address.host)?;
    let answer = ask(&address, Some((unchecked()?, name)), "GET", "");
    Ok(match answer {
        Ok(answer) if answer.status == 200 => Seen::Well(answer.certificate),
        Ok(answer) => Seen::Ill(format!("{} {}", answer.status, answer.body.trim())),
        Err(error) => Seen::Nothing(error.to_string()),
    })
}

/// Asks nanogpu-scheduler a question that changes nothing, as kube-scheduler would: with the
/// certificates of `settings`' extender. Asks again for a while if there is no answer.
pub fn extender(
    settings: &Value,
    certificates: &BTreeMap<String, Vec<u8>>,
    checking: &Checking,
    say: Say,
) -> anyhow::Result<()> {
    let extender = &settings["extenders"][0];
    let prefix = extender["urlPrefix"].as_str().context("the extender has no urlPrefix")?;
    let address = Address::read(&format!("{}/filter-dryrun", prefix.trim_end_matches('/')))?;
    let tls = if address.secure {
        let name = extender["tlsConfig"]["serverName"].as_str().unwrap_or(&address.host);
        Some((mutual(certificates)?, name_of(name)?))
    } else {
        None
    };
    let within = STARTING.min(Duration::from_secs(checking.within));
    let started = Instant::now();
    let mut told = false;
    loop {
        let Err(why) = answers(&address, tls.clone(), prefix) else { return Ok(()) };
        if started.elapsed() + PAUSE >= within {
            bail!("{why:#} (asked for {} seconds)", within.as_secs());
        }
        if !told {
            say(&format!("{why:#}; asked again for {} seconds.", within.as_secs()));
            told = true;
        }
        thread::sleep(PAUSE);
    }
}

fn answers(address: &Address, tls: Option<Tls>, prefix: &str) -> anyhow::Result<()> {
    let answer = ask(address, tls, "POST", NOTHING)
        .with_context(|| format!("nanogpu-scheduler does not answer at {prefix}"))?;
    ensure!(
        answer.status == 200,
        "nanogpu-scheduler at {prefix} is not ready: {} {}",
        answer.status,
        answer.body.trim()
    );
    Ok(())
}

impl Address {
    fn read(url: &str) -> anyhow::Result<Self> {
        let wrong = || format!("`{url}` is no address such as https://127.0.0.1:10259/healthz");
        let (scheme, rest) = url.split_once("://").with_context(wrong)?;
        let secure = match scheme {
            "https" => true,
            "http" => false,
            _ => bail!(wrong()),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().ok().with_context(wrong)?)
            }
            _ => (authority, if secure { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            bail!(wrong());
        }
        Ok(Self { secure, host: host.to_owned(), port, path: path.to_owned() })
    }
}

fn ask(address: &Address, tls: Option<Tls>, method: &str, body: &str) -> io::Result<Answer> {
    let mut places = (address.host.as_str(), address.port).to_socket_addrs()?;
    let place = places.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(&place, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        address.path,
        address.host,
        body.len()
    );
    let Some((config, name)) = tls else {
        let mut stream = stream;
        return Ok(Answer { certificate: None, ..exchange(&mut stream, &request)? });
    };
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let answer = exchange(&mut stream, &request)?;
    let certificate = stream.conn.peer_certificates().and_then(<[_]>::first);
    Ok(Answer { certificate: certificate.map(|it| Digest::of(it)), ..answer })
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> io::Result<Answer> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut bytes = Vec::new();
    // Answers are short; a server that never ends is cut off. One that closes without a farewell
    // has still answered.
    let mut limited = stream.take(64 << 10);
    if let Err(error) = limited.read_to_end(&mut bytes)
        && bytes.is_empty()
    {
        return Err(error);
    }
    let text = String::from_utf8_lossy(&bytes);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("the answer is no HTTP"))?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(Answer { status, body: body.to_owned(), certificate: None })
}

fn name_of(host: &str) -> anyhow::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).with_context(|| format!("`{host}` is no name of a host"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn mutual(certificates: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<Arc<ClientConfig>> {
    let file = |name: &str| {
        certificates
            .get(name)
            .map(Vec::as_slice)
            .with_context(|| format!("there is no {name}: give --certificates, the folder of the Secret nanogpu-scheduler-tls"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(file("ca.crt")?) {
        roots.add(certificate.context("ca.crt is no PEM")?)?;
    }
    let chain = CertificateDer::pem_slice_iter(file("client.crt")?);
    let chain = chain.collect::<Result<Vec<_>, _>>().context("client.crt is no PEM")?;
    let key = PrivateKeyDer::from_pem_slice(file("client.key")?).context("client.key is no PEM")?;
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    Ok(Arc::new(
        builder.with_client_auth_cert(chain, key).context("client.crt does not fit client.key")?,
    ))
}

fn unchecked() -> anyhow::Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions()?.dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(Any(provider())));
    Ok(Arc::new(builder.with_no_client_auth()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let read = |url: &str| {
            let it = Address::read(url).unwrap();
            (it.secure, it.host, it.port, it.path)
        };
        assert_eq!(
            read("https://127.0.0.1:10259/healthz"),
            (true, "127.0.0.1".into(), 10259, "/healthz".into())
        );
        assert_eq!(read("https://[::1]:9/a/b"), (true, "::1".into(), 9, "/a/b".into()));
        assert_eq!(read("http://host"), (false, "host".into(), 80, "/".into()));
        assert_eq!(read("https://[::1]"), (true, "::1".into(), 443, "/".into()));
        for wrong in ["127.0.0.1:1", "ftp://x", "https://:1", "https://x:port"] {
            assert!(Address::read(wrong).is_err(), "{wrong}");
        }
    }
}
