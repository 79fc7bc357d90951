//! Who may come in: a browser of the person who started us, and nobody else on this machine.
//!
//! Every path begins with a secret that only that person was shown. Another account on the machine
//! does not know it. A web page does not know it either; should it learn it, it cannot read our
//! answers, and what names us by another host (DNS rebinding) or comes from another page is turned
//! away before the secret is looked at.

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use http::{Method, StatusCode};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Our address and our secret.
#[derive(Debug, Clone)]
pub(super) struct Door {
    port: u16,
    secret: String,
}

impl Door {
    /// A door at this port of loopback, with a secret nobody has seen.
    pub(super) fn new(port: u16) -> anyhow::Result<Self> {
        let mut random = [0; 16];
        let source = rustls::crypto::ring::default_provider().secure_random;
        source
            .fill(&mut random)
            .map_err(|_| anyhow::anyhow!("this machine gives no random numbers"))?;
        let secret = format!("{:032x}", u128::from_be_bytes(random));
        Ok(Self { port, secret })
    }

    /// What a person opens.
    pub(super) fn address(&self, namespace: &str) -> String {
        format!("http://127.0.0.1:{}/{}/dashboard/?namespace={namespace}", self.port, self.secret)
    }

    /// The path to ask the scheduler for, or why not.
    pub(super) fn enter<'a>(
        &self,
        method: &Method,
        path: &'a str,
        headers: &HeaderMap,
    ) -> Result<&'a str, (StatusCode, &'static str)> {
        let text =
            |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or("?"));
        let ours = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        let is_ours = |host: &str| ours.iter().any(|known| known == host);
        if !text(HOST).is_some_and(is_ours) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this is the dashboard of 127.0.0.1 only\n",
            ));
        }
        let from =
            text(ORIGIN).is_none_or(|origin| origin.strip_prefix("http://").is_some_and(is_ours));
        // Typed or clicked outside a browser is `none`. A page elsewhere may not even link to us.
        let site = text(FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none");
        if !from || !site {
            return Err((StatusCode::FORBIDDEN, "other pages may not use this dashboard\n"));
        }
        let below = path.strip_prefix('/').and_then(|rest| {
            let (secret, below) = rest.split_at_checked(self.secret.len())?;
            same(secret.as_bytes(), self.secret.as_bytes()).then_some(below)
        });
        let Some(below) = below.filter(|below| below.starts_with('/')) else {
            return Err((StatusCode::NOT_FOUND, "open the whole address that was printed\n"));
        };
        let served = below.starts_with("/dashboard") || below.starts_with("/api/v1/");
        match (method == Method::GET || method == Method::HEAD, served) {
            (true, true) => Ok(below),
            (false, _) => Err((StatusCode::METHOD_NOT_ALLOWED, "the dashboard only reads\n")),
            (_, false) => Err((StatusCode::NOT_FOUND, "the dashboard has no such page\n")),
        }
    }
}

/// Compares in a time that does not tell how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), (*value).parse().unwrap()))
            .collect()
    }

    fn door() -> (Door, String) {
        let door = Door::new(4321).unwrap();
        let path = format!("/{}/api/v1/nodes?a=b", door.secret);
        (door, path)
    }

    #[test]
    fn the_person_who_was_shown_the_address_comes_in() {
        let (door, path) = door();
        for more in [
            vec![],
            vec![("sec-fetch-site", "none")],
            vec![("origin", "http://127.0.0.1:4321"), ("sec-fetch-site", "same-origin")],
        ] {
            let all = [vec![("host", "127.0.0.1:4321")], more].concat();
            assert_eq!(door.enter(&Method::GET, &path, &headers(&all)), Ok("/api/v1/nodes?a=b"));
        }
        let address = door.address("team");
        assert!(
            address.starts_with("http://127.0.0.1:4321/") && address.ends_with("?namespace=team")
        );
    }

    #[test]
    fn names_of_others_pages_of_others_and_guesses_do_not() {
        let (door, path) = door();
        let status = |method: Method, path: &str, pairs: &[(&'static str, &'static str)]| {
            door.enter(&method, path, &headers(pairs)).unwrap_err().0.as_u16()
        };
        let host = ("host", "127.0.0.1:4321");
        // Another name that was made to lead here, another port, no name at all.
        for pairs in [vec![("host", "evil.example:4321")], vec![("host", "127.0.0.1:80")], vec![]] {
            assert_eq!(status(Method::GET, &path, &pairs), 421);
        }
        for from in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(status(Method::GET, &path, &[host, from]), 403, "{from:?}");
        }
        let wrong = path.replace(&door.secret, &"0".repeat(door.secret.len()));
        for path in [wrong.as_str(), "/", "/dashboard/", "/api/v1/nodes", "/é", &path[..20]] {
            assert_eq!(status(Method::GET, path, &[host]), 404, "{path}");
        }
        let verbs = format!("/{}/scheduler/bind", door.secret);
        assert_eq!(status(Method::GET, &verbs, &[host]), 404);
        assert_eq!(status(Method::POST, &path, &[host]), 405);
    }

    #[test]
    fn no_two_secrets_are_alike() {
        assert_ne!(door().1, door().1);
    }
}
