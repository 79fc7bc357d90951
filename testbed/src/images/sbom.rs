//! What is in an image, as an SPDX document: our crates and those of others, and the machine's libraries.

use std::process::Command;

use serde_json::{Value, json};

use super::crates::{Arrow, Crate};

/// A file in the image that did not come from a crate.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// Its path in the image.
    pub(super) path: String,
    /// Its digest.
    pub(super) sha256: String,
}

/// All that a document tells.
pub(super) struct Contents<'a> {
    pub(super) image: &'a str,
    pub(super) version: &'a str,
    pub(super) crates: &'a [Crate],
    pub(super) arrows: &'a [Arrow],
    /// The programs, with the packages they are made from in front.
    pub(super) programs: &'a [(String, Piece)],
    pub(super) libraries: &'a [Piece],
}

/// The document. The same contents give the same document: it has no time but the beginning.
pub(super) fn document(contents: &Contents<'_>) -> Value {
    let mut packages = vec![image(contents)];
    let mut relations = vec![relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image")];
    let mut contain = |id: &str| relations.push(relation("SPDXRef-image", "CONTAINS", id));
    for (package, piece) in contents.programs {
        contain(&reference("file", &piece.path));
        packages.push(file(piece, &format!("built from the package {package}")));
    }
    for library in contents.libraries {
        contain(&reference("file", &library.path));
        packages.push(file(library, "of the system the image was made on"));
    }
    if let Some(version) = toolchain() {
        contain("SPDXRef-rust-std");
        packages.push(json!({
            "SPDXID": "SPDXRef-rust-std", "name": "rust-std", "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "MIT OR Apache-2.0",
            "copyrightText": "NOASSERTION",
        }));
    }
    for one in contents.crates {
        contain(&crate_id(&one.name, &one.version));
        packages.push(linked(one));
    }
    for ((from, from_version), (to, to_version)) in contents.arrows {
        let (from, to) = (crate_id(from, from_version), crate_id(to, to_version));
        relations.push(relation(&from, "DEPENDS_ON", &to));
    }
    let mut document = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{} {}", contents.image, contents.version),
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: nanogpu-images"]},
        "packages": packages,
        "relationships": relations,
    });
    // A name of its own for each content.
    let digest = super::archive::hash(document.to_string().as_bytes());
    let home = env!("CARGO_PKG_REPOSITORY");
    document["documentNamespace"] = json!(format!("{home}/sbom/{}-{digest}", contents.image));
    document
}

fn image(contents: &Contents<'_>) -> Value {
    json!({
        "SPDXID": "SPDXRef-image", "name": contents.image, "versionInfo": contents.version,
        "primaryPackagePurpose": "CONTAINER",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION", "licenseDeclared": env!("CARGO_PKG_LICENSE"),
        "copyrightText": "NOASSERTION",
    })
}

fn file(piece: &Piece, comment: &str) -> Value {
    json!({
        "SPDXID": reference("file", &piece.path), "name": piece.path, "comment": comment,
        "primaryPackagePurpose": "FILE",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": piece.sha256}],
    })
}

fn linked(one: &Crate) -> Value {
    let licence = if one.licence.is_empty() { "NOASSERTION" } else { &one.licence };
    let mut package = json!({
        "SPDXID": crate_id(&one.name, &one.version), "name": one.name, "versionInfo": one.version,
        "primaryPackagePurpose": "LIBRARY",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION", "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    });
    // Only what came from a registry has a name that others know.
    if let Some(checksum) = &one.checksum {
        package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": checksum}]);
        package["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B")),
        }]);
    }
    package
}

fn relation(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

fn crate_id(name: &str, version: &str) -> String {
    reference("crate", &format!("{name}-{version}"))
}

/// Letters, digits, dots and dashes are allowed.
fn reference(kind: &str, text: &str) -> String {
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let text: String = text.trim_start_matches('/').chars().map(plain).collect();
    format!("SPDXRef-{kind}-{text}")
}

/// The version of the standard library that is in every program, if the compiler is there to be asked.
fn toolchain() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split(' ').nth(1)?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_each_thing_once_and_relates_only_what_it_names() {
        let one = |name: &str, checksum: Option<&str>| Crate {
            name: name.into(),
            version: "1.0.0+x".into(),
            licence: "MIT".into(),
            checksum: checksum.map(Into::into),
        };
        let key = |name: &str| (name.to_owned(), "1.0.0+x".to_owned());
        let piece = |path: &str| Piece { path: path.into(), sha256: "00".into() };
        let document = document(&Contents {
            image: "x",
            version: "1",
            crates: &[one("a", None), one("b_c", Some("ff"))],
            arrows: &[(key("a"), key("b_c"))],
            programs: &[("a".into(), piece("/usr/bin/a"))],
            libraries: &[piece("/lib/libc.so.6")],
        });
        let packages = document["packages"].as_array().unwrap();
        let mut ids: Vec<&str> = packages.iter().filter_map(|it| it["SPDXID"].as_str()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for relation in document["relationships"].as_array().unwrap() {
            let to = relation["relatedSpdxElement"].as_str().unwrap();
            assert!(ids.contains(&to), "{to}");
        }
        let other = packages.iter().find(|it| it["name"] == "b_c").unwrap();
        assert_eq!(other["externalRefs"][0]["referenceLocator"], "pkg:cargo/b_c@1.0.0%2Bx");
        assert_eq!(other["checksums"][0]["checksumValue"], "ff");
    }
}
