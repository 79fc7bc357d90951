//! Compiles the kubelet's protocols, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // Each file is compiled by itself: their packages are called `v1` and the like, and two of one
    // name must not meet.
    for file in ["device_plugin", "pod_resources", "plugin_registration", "dra", "vcuda"] {
        let file = format!("{file}.proto");
        println!("cargo::rerun-if-changed=proto/{file}");
        let parsed = protox::compile([&file], ["proto"])?;
        tonic_prost_build::configure().compile_fds(parsed)?;
    }
    Ok(())
}
