//! Folders that look like the roots of systems people run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::libraries;

/// A layout of libraries that a loader meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Libraries in a folder named after the platform, `/lib` a link.
    Debian,
    /// The same, with the folders its CUDA images add to the loader's list.
    Ubuntu,
    /// Libraries in `/usr/lib64`, `/lib64` a link.
    Rhel,
}

impl Shape {
    pub(super) const ALL: [Self; 3] = [Self::Debian, Self::Ubuntu, Self::Rhel];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Ubuntu => "ubuntu",
            Self::Rhel => "rhel",
        }
    }

    /// Where libraries lie.
    fn libraries(self) -> &'static str {
        match self {
            Self::Debian | Self::Ubuntu => "usr/lib/x86_64-linux-gnu",
            Self::Rhel => "usr/lib64",
        }
    }

    /// Files of the loader's configuration.
    fn loader_files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Debian => &[
                ("ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"),
                ("ld.so.conf.d/x86_64-linux-gnu.conf", "/usr/lib/x86_64-linux-gnu\n"),
            ],
            Self::Ubuntu => &[
                ("ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"),
                ("ld.so.conf.d/x86_64-linux-gnu.conf", "/usr/lib/x86_64-linux-gnu\n"),
                ("ld.so.conf.d/nvidia.conf", "/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n"),
            ],
            Self::Rhel => &[
                ("ld.so.conf", "include ld.so.conf.d/*.conf\n"),
                ("ld.so.conf.d/lib64.conf", "/usr/lib64\n"),
            ],
        }
    }

    fn release(self) -> &'static str {
        match self {
            Self::Debian => "ID=debian\nNAME=\"Debian-shaped test root\"\n",
            Self::Ubuntu => "ID=ubuntu\nID_LIKE=debian\nNAME=\"Ubuntu-shaped test root\"\n",
            Self::Rhel => "ID=rhel\nNAME=\"RHEL-shaped test root\"\n",
        }
    }
}

/// A static busybox with a link for each applet. Nothing else.
pub(super) fn base(busybox: &Path, root: &Path) -> anyhow::Result<PathBuf> {
    fresh(root)?;
    for name in ["bin", "tmp", "etc", "proc", "sys", "dev", "var", "run", "root"] {
        fs::create_dir(root.join(name)).with_context(|| format!("cannot make {name}"))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    install_busybox(busybox, &root.join("bin"))?;
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    Ok(root.to_owned())
}

/// A root of the given shape with this machine's own C library in it, so that programs linked
/// dynamically run, and the loader's cache as that system's `ldconfig` would leave it.
pub(super) fn shaped(shape: Shape, busybox: &Path, root: &Path) -> anyhow::Result<()> {
    fresh(root)?;
    for name in
        ["usr/bin", "usr/sbin", "tmp", "etc/ld.so.conf.d", "proc", "sys", "dev", "var", "run"]
    {
        fs::create_dir_all(root.join(name)).with_context(|| format!("cannot make {name}"))?;
    }
    fs::create_dir_all(root.join(shape.libraries()))?;
    fs::create_dir_all(root.join("usr/lib64"))?;
    for name in ["bin", "sbin", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    fs::create_dir_all(root.join("usr/lib"))?;
    symlink("usr/lib", root.join("lib"))?;
    install_busybox(busybox, &root.join("usr/bin"))?;
    for library in
        ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"]
    {
        copy_library(library, &root.join(shape.libraries()).join(library))?;
    }
    // The loader's path is written into every program, so it is the same in all shapes.
    let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
    copy_library("ld-linux-x86-64.so.2", &loader)?;
    if shape == Shape::Rhel {
        let bytes = fs::read(&loader).context("cannot read the loader")?;
        fs::write(&loader, searching_lib64(bytes)).context("cannot write the loader")?;
    }
    for (name, text) in shape.loader_files() {
        fs::write(root.join("etc").join(name), text)?;
    }
    fs::write(root.join("etc/os-release"), shape.release())?;
    let status = Command::new("/sbin/ldconfig")
        .arg("-r")
        .arg(root)
        .status()
        .context("cannot run ldconfig, which comes with the C library")?;
    if !status.success() {
        bail!("ldconfig -r {} ended with {status}", root.display());
    }
    Ok(())
}

/// A loader that searches where RHEL's does: the folders it knows without a cache are built in. Here
/// each gets another name of the same length; slashes more make no difference.
fn searching_lib64(mut loader: Vec<u8>) -> Vec<u8> {
    let renamed: [(&[u8], &[u8]); 2] = [
        (b"/usr/lib/x86_64-linux-gnu/\0", b"/usr/lib64////////////////\0"),
        (b"/lib/x86_64-linux-gnu/\0", b"/lib64////////////////\0"),
    ];
    for (from, to) in renamed {
        let places: Vec<usize> = (0..loader.len().saturating_sub(from.len()))
            .filter(|at| loader[*at..].starts_with(from))
            .collect();
        for at in places {
            loader[at..at + to.len()].copy_from_slice(to);
        }
    }
    loader
}

/// A root with accounts and a place for temporary files, and nothing that runs.
pub(super) fn bare(root: &Path) -> anyhow::Result<()> {
    fresh(root)?;
    for name in ["etc", "tmp"] {
        fs::create_dir(root.join(name)).with_context(|| format!("cannot make {name}"))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nnonroot:x:65532:\n")?;
    Ok(())
}

fn fresh(root: &Path) -> anyhow::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot clear {}", root.display()))?;
    }
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))
}

fn install_busybox(busybox: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::copy(busybox, folder.join("busybox"))
        .with_context(|| format!("cannot copy {}", busybox.display()))?;
    let applets = Command::new(busybox)
        .arg("--list")
        .output()
        .with_context(|| format!("cannot run {}", busybox.display()))?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        if applet != "busybox" && !applet.contains('/') {
            symlink("busybox", folder.join(applet))
                .with_context(|| format!("cannot link {applet}"))?;
        }
    }
    Ok(())
}

/// Copies a library of this machine.
fn copy_library(name: &str, target: &Path) -> anyhow::Result<()> {
    let found = libraries::find(name)?;
    fs::copy(&found, target).with_context(|| format!("cannot copy {}", found.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_differ_where_a_loader_looks() {
        assert_ne!(Shape::Debian.libraries(), Shape::Rhel.libraries());
        for shape in Shape::ALL {
            let conf = shape.loader_files().iter().map(|(_, text)| *text).collect::<String>();
            assert!(conf.contains(&format!("/{}", shape.libraries())), "{shape:?}");
        }
    }
}
