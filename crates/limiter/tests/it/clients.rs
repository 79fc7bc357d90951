//! Programs from the Python world under the limiter: right answers, and the right error at the limit.
//!
//! They are those of `simdriver/simgpu/tests/it/clients.rs`, which installs them into the user's cache. So these
//! tests are run after it, by `cargo xtask test`, and fail without them.

use std::path::{Path, PathBuf};

use crate::rig::{MIB, Rig, Share};

const REQUIREMENTS: &str =
    include_str!("../../../../simdriver/simgpu/tests/it/clients/requirements.txt");

fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let number =
        REQUIREMENTS.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    let cache = cache.or_else(home).expect("HOME says where the user's cache is");
    let folder = cache.join(format!("nanogpu/clients-{number:08x}"));
    assert!(
        folder.join("ready").exists(),
        "the clients are not installed: cargo test -p simgpu --test it clients -- --ignored"
    );
    folder.join("bin/python3")
}

/// What a script says, in a container with 2 GiB of the first card.
fn said(script: &str) -> String {
    let python = python();
    let rig = Rig::with("dgx-a100", "550.163.01", &[Share::memory(0, 2048 * MIB)], |_| {});
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients").join(script);
    let output = rig.command("root", python).arg(path).env("LC_ALL", "C.UTF-8").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs the Python clients; cargo xtask test"]
fn cuda_bindings_and_nvidia_ml_py_have_the_share() {
    let text = said("bindings.py");
    let wanted =
        "blocks 27\nfree 20 of 2048\ncards 1\nnvml 2028 of 2048\nprocess 2028\nfree 1748\n";
    assert_eq!(text, wanted);
}

#[test]
#[ignore = "needs the Python clients; cargo xtask test"]
fn numba_copies_and_is_refused_at_the_limit() {
    let text = said("arrays.py");
    // The first array takes a block of 4 MiB.
    assert_eq!(text, "copied\ntotal 2048\nrefused after 27 True\n");
}

#[test]
#[ignore = "needs the Python clients; cargo xtask test"]
fn nvitop_shows_one_card_of_two_gibibytes() {
    let text = said("shown.py");
    assert_eq!(text, "nvitop 2048 0 0\n");
}
