//! The program itself, as an administrator starts it.

use std::process::{Command, Stdio};

/// What the program says when it is started with a file of options and one of the environment.
fn says(file: &str, env: (&str, &str)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("options.yaml");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nanogpu-scheduler"))
        .env_clear()
        .env("KUBECONFIG", folder.path().join("no-such-kubeconfig"))
        .env(env.0, env.1)
        .arg("--config")
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success(), "there is no cluster");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_environment_outranks_the_file_and_the_file_what_is_left_out() {
    let file = "address: nowhere\n";
    let text = says(file, ("UNHEARD_OF", "1"));
    assert!(text.contains("nowhere"), "the file counts: {text}");
    let text = says(file, ("NANOGPU_ADDRESS", "127.0.0.1:0"));
    assert!(!text.contains("nowhere"), "the environment counts: {text}");
    assert!(text.contains("no-such-kubeconfig"), "{text}");
}
