//! The page people open: files that are part of the program, served as they are.
//!
//! They hold no data of a cluster and need no token. What they show they ask of the API, with the
//! token of whoever looks.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Path, type, content.
const FILES: [(&str, &str, &str); 9] = [
    ("", "text/html; charset=utf-8", include_str!("../../../../web/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("../../../../web/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("../../../../web/icon.svg")),
    ("app.js", SCRIPT, include_str!("../../../../web/app.js")),
    ("api.js", SCRIPT, include_str!("../../../../web/api.js")),
    ("charts.js", SCRIPT, include_str!("../../../../web/charts.js")),
    ("dom.js", SCRIPT, include_str!("../../../../web/dom.js")),
    ("map.js", SCRIPT, include_str!("../../../../web/map.js")),
    ("story.js", SCRIPT, include_str!("../../../../web/story.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing from elsewhere, nothing written into the page, no text turned into markup, no frame
/// around it.
const POLICY: &str = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The files below `/dashboard/`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // The address is relative: a proxy may serve us below a path of its own.
    let moved = || async { (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "dashboard/")]) };
    Router::new()
        .route("/dashboard", get(moved))
        .route("/dashboard/", get(|| async { file("") }))
        .route("/dashboard/{file}", get(|Path(name): Path<String>| async move { file(&name) }))
}

fn file(name: &str) -> Response {
    let Some((_, kind, content)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return crate::http::error(StatusCode::NOT_FOUND, "the dashboard has no such file");
    };
    let head = [
        (header::CONTENT_TYPE, *kind),
        // A new version of the program must not meet files of the last one.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (head, *content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_light_and_needs_nothing_from_elsewhere() {
        let size: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(size < 100_000, "{size} bytes");
        for (name, _, content) in FILES {
            // The one address in it is the name of SVG.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for foreign in ["http://", "https://", "innerHTML", "insertAdjacentHTML", "eval("] {
                assert!(!content.contains(foreign), "{name} has {foreign}");
            }
        }
    }

    #[test]
    fn no_script_and_no_style_stands_in_the_page() {
        let page = FILES[0].2;
        assert!(!page.contains("<style") && !page.contains("style="));
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script type=\"module\" src=").count()
        );
        assert!(!page.contains(" on"), "a handler in the markup, or a word that looks like one");
    }
}
