//! What is shipped beside the program.

use serde_json::Value;

#[test]
fn the_krew_manifest_is_of_this_program() {
    let text = include_str!("../../../../deploy/krew/nanogpu.yaml");
    let manifest: Value = serde_saphyr::from_str(text).unwrap();
    assert_eq!(manifest["metadata"]["name"], "nanogpu");
    assert_eq!(manifest["spec"]["version"], concat!("v", env!("CARGO_PKG_VERSION")));
    // krew refuses longer ones.
    assert!(manifest["spec"]["shortDescription"].as_str().unwrap().len() <= 50);
    for platform in manifest["spec"]["platforms"].as_array().unwrap() {
        assert_eq!(platform["bin"], "kubectl-nanogpu");
        let uri = platform["uri"].as_str().unwrap();
        assert!(uri.contains(concat!("/v", env!("CARGO_PKG_VERSION"), "/")), "{uri}");
        let arch = platform["selector"]["matchLabels"]["arch"].as_str().unwrap();
        assert!(uri.ends_with(&format!("linux-{arch}.tar.gz")), "{uri}");
        assert_eq!(platform["sha256"].as_str().unwrap().len(), 64);
    }
}
