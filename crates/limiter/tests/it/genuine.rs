//! NVIDIA's own libraries, from the distribution's packages: they load and answer lookups without a card.
//!
//! They are not ours to keep, so a soak fetches them with apt, from the mirror that this machine is
//! configured for: `cargo xtask soak genuine`. `NANOGPU_GENUINE_DRIVERS` names a folder that has them already.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lookups::compare;
use crate::rig::{self, Rig};

/// The suites that had branches 535, 550 and 555.
const SUITES: [&str; 3] = ["bookworm", "sid", "experimental"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What a command says; it must succeed.
fn said(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Debian's mirror, as apt knows it.
fn mirror() -> String {
    let format = "$(ORIGIN) $(CODENAME) $(REPO_URI)";
    let targets = said(Command::new("apt-get").args(["indextargets", "--format", format]));
    let main = |line: &str| {
        let mut words = line.split(' ');
        let debian = words.next() == Some("Debian") && !words.next()?.contains('-');
        words.next().filter(|_| debian).map(str::to_owned)
    };
    targets.lines().find_map(main).expect("apt has a mirror of Debian; run apt-get update first")
}

/// Fetches every version of libcuda that the suites have; says where the libraries lie.
fn fetch(folder: &Path) -> PathBuf {
    for below in ["parts", "state/lists/partial", "cache/archives/partial", "got"] {
        std::fs::create_dir_all(folder.join(below)).unwrap();
    }
    let (mirror, list) = (mirror(), folder.join("sources.list"));
    let keys =
        if Path::new(KEYS).exists() { format!("[signed-by={KEYS}] ") } else { String::new() };
    let lines = SUITES.map(|suite| format!("deb {keys}{mirror} {suite} non-free\n"));
    std::fs::write(&list, lines.concat()).unwrap();
    // With lists of its own: nothing of the machine's is changed.
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (option, path) in [
            ("Dir::Etc::sourcelist", list.clone()),
            ("Dir::Etc::sourceparts", folder.join("parts")),
            ("Dir::State", folder.join("state")),
            ("Dir::Cache", folder.join("cache")),
        ] {
            command.arg("-o").arg(format!("{option}={}", path.display()));
        }
        command.args(["-o", "APT::Sandbox::User="]).current_dir(folder.join("got"));
        command
    };
    said(apt("apt-get").args(["--quiet", "update"]));
    let versions = said(apt("apt-cache").args(["madison", "libcuda1"]));
    for line in versions.lines() {
        let version = line.split('|').nth(1).unwrap().trim();
        said(apt("apt-get").args(["--quiet", "download", &format!("libcuda1={version}")]));
    }
    for package in std::fs::read_dir(folder.join("got")).unwrap() {
        said(Command::new("dpkg-deb").arg("-x").arg(package.unwrap().path()).arg(folder));
    }
    let machines = std::fs::read_dir(folder.join("usr/lib")).unwrap();
    let current = machines.map(|machine| machine.unwrap().path().join("nvidia/current"));
    current.into_iter().find(|path| path.exists()).expect("the packages have libraries")
}

#[test]
#[ignore = "fetches NVIDIA's libraries; cargo xtask soak genuine"]
fn genuine_drivers_are_answered_for_just_so() {
    const TEST: &str = "genuine_drivers_are_answered_for_just_so";
    if rig::role().is_some() {
        let (resolved, hooked, wrong) = compare();
        println!("{resolved} resolved, {hooked} hooked, {} wrong", wrong.len());
        assert_eq!(wrong, Vec::<String>::new());
        assert!(resolved > 500 && hooked > 100);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let given = std::env::var_os("NANOGPU_GENUINE_DRIVERS").map(PathBuf::from);
    let mut tried = 0;
    for file in std::fs::read_dir(given.unwrap_or_else(|| fetch(folder.path()))).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("libcuda.so.") || path.is_symlink() {
            continue;
        }
        println!("{name}");
        let rig = Rig::new();
        let driver = rig.path("root/driver/libcuda.so.1");
        std::fs::remove_file(&driver).unwrap();
        std::fs::copy(&path, &driver).unwrap();
        let status = rig.role("root", TEST, "body").arg("--ignored").status().unwrap();
        assert!(status.success(), "{name}: {status}");
        tried += 1;
    }
    assert!(tried > 0, "no libcuda.so.* was found");
}
