//! Container images without a registry or a container engine: a folder becomes an OCI archive.

mod archive;
mod crates;
mod elf;
mod folders;
mod libraries;
mod product;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::binaries::{Binaries, Program};
use crate::layout::Layout;
use crate::node;
pub use archive::Image;
pub use crates::Features;
pub use product::{AGENT_ENV, Made, Parts, kube_scheduler_image, product_images};

/// The image of the process that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "localhost/pause:1";

/// A busybox, and what the names of its applets are.
pub const BASE: &str = "localhost/nanogpu-base:1";

/// The images every node has, written below `folder`: the base and pause.
pub fn base_images(binaries: &Binaries, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let root = folders::base(&binaries.system.busybox, &folder.join("base.rootfs"))?;
    let base = Image::new(BASE, &root).command(&["sh"]).env("PATH", "/bin");
    // It must end when asked and take in orphans, which is all a shell does while it waits.
    let pause = Image::new(PAUSE, &root).entrypoint(&[
        "/bin/busybox",
        "sh",
        "-c",
        "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done",
    ]);
    Ok(vec![write_one(&base, folder, "base")?, write_one(&pause, folder, "pause")?])
}

/// All images of ours, with a Containerfile each for people with a container engine.
pub fn write_images(binaries: &Binaries, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = base_images(binaries, folder)?;
    for shape in folders::Shape::ALL {
        let name = shape.name();
        let root = folder.join(format!("{name}.rootfs"));
        folders::shaped(shape, &binaries.system.busybox, &root)?;
        let image = Image::new(&format!("localhost/nanogpu-{name}:1"), &root)
            .command(&["sh"])
            .env("PATH", "/usr/bin:/bin");
        files.push(write_one(&image, folder, name)?);
    }
    Ok(files)
}

fn write_one(image: &Image, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let file = folder.join(format!("{name}.tar"));
    image.write(&file)?;
    let recipe = folder.join(format!("{name}.Containerfile"));
    fs::write(&recipe, image.containerfile())
        .with_context(|| format!("cannot write {}", recipe.display()))?;
    Ok(file)
}

/// Loads an archive into a node's containerd.
pub(crate) fn load(
    layout: &Layout,
    binaries: &Binaries,
    node: &str,
    archive: &Path,
) -> anyhow::Result<()> {
    let output = Command::new(binaries.path(Program::Ctr))
        .arg("--address")
        .arg(node::socket(layout, node))
        // Where the kubelet looks. Nothing is fetched or unpacked for other platforms.
        .args(["--namespace", "k8s.io", "images", "import", "--local"])
        .arg(archive)
        .output()
        .context("cannot run ctr")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{node} does not take the image {}: {said}", archive.display());
    }
    Ok(())
}
