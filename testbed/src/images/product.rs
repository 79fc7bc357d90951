//! The images that are shipped: a program, exactly the libraries it needs, and a list of its contents.
//!
//! No shell, no package manager: what is not there cannot be used against it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::crates::{Features, Linked};
use super::sbom::{self, Piece};
use super::{Image, archive, folders, libraries, write_one};
use crate::binaries::{Binaries, Program};

/// What we ship, and the folder its parts lie in.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The folder of our programs.
    pub programs: PathBuf,
    /// The folder of the agent, which is built in a way of its own to ship.
    pub agent: PathBuf,
    /// Our limiter.
    pub limiter: PathBuf,
    /// With which features the programs were built.
    pub features: Features,
    /// Which images, such as `agent`; all if it is empty.
    pub wanted: Vec<&'static str>,
    /// What image names begin with, such as `localhost/nanogpu`.
    pub prefix: String,
    /// Behind the colon; also the label `version`.
    pub tag: String,
    /// The commit that everything was built from, if it is known.
    pub revision: Option<String>,
}

/// An image that was written.
#[derive(Debug, Clone)]
pub struct Made {
    /// Its name with the tag.
    pub name: String,
    /// The OCI archive.
    pub archive: PathBuf,
    /// The list of its contents.
    pub sbom: Option<PathBuf>,
    /// Of the archive, in bytes.
    pub size: u64,
    /// Whom it runs as.
    pub user: String,
    /// How many crates are in it.
    pub crates: usize,
}

impl Made {
    /// The size, for people.
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
    pub fn megabytes(&self) -> f64 {
        self.size as f64 / 1e6
    }
}

/// An image of a program of ours.
struct Product<'a> {
    name: &'a str,
    about: &'a str,
    program: &'a str,
    /// The folder in which it lies.
    folder: &'a Path,
    /// The packages whose code is in it.
    packages: &'a [&'a str],
    user: &'a str,
    /// Files besides the program, with their places.
    files: Vec<(&'a Path, &'a str)>,
    /// Libraries that are opened while it runs.
    opens: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
}

/// Somebody without rights, by the number that images without a shell usually have.
const NOBODY: &str = "65532:65532";
/// Where the agent's image has the limiter.
const LIMITER: &str = "/usr/lib/nanogpu/libnanogpu.so";
/// What the agent's image sets. The agent has many threads that seldom do anything: with a heap for each
/// the C library would keep, for most of them, memory that nobody uses.
pub const AGENT_ENV: [(&str, &str); 4] = [
    ("NANOGPU_LIMITER_SOURCE", LIMITER),
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
];
/// What NVIDIA's NVML, which the agent opens from the node's driver, is linked with.
const NVML: &[&str] = &["libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6"];

impl Parts {
    /// Those of [`crate::built`] and [`crate::built_limiter`], under names that need no registry.
    pub fn built() -> anyhow::Result<Self> {
        Ok(Self::of(crate::built()?, crate::built_limiter()?))
    }

    /// Programs in a folder and a limiter that were built with the workspace before.
    pub fn of(programs: PathBuf, limiter: PathBuf) -> Self {
        Self {
            agent: programs.clone(),
            programs,
            limiter,
            features: Features::Workspace,
            wanted: Vec::new(),
            prefix: "localhost/nanogpu".to_owned(),
            tag: env!("CARGO_PKG_VERSION").to_owned(),
            revision: None,
        }
    }

    fn products(&self) -> Vec<Product<'_>> {
        let one = |name, about, program, packages, user| Product {
            name,
            about,
            program,
            folder: &self.programs,
            packages,
            user,
            files: Vec::new(),
            opens: &[],
            env: &[],
        };
        let scheduler =
            "Decides which cards a pod gets: extender of kube-scheduler, webhook, dashboard";
        let agent = "Finds the cards of a node and hands each container exactly its own";
        let mut products = vec![
            one("scheduler", scheduler, "nanogpu-scheduler", &["scheduler"], NOBODY),
            Product {
                folder: &self.agent,
                files: vec![(&self.limiter, LIMITER)],
                opens: NVML,
                env: &AGENT_ENV,
                // The kubelet's folders belong to root.
                ..one("agent", agent, "nanogpu-agent", &["agent", "limiter"], "0:0")
            },
            one("kubectl", "Answers about shared cards", "kubectl-nanogpu", &["kubectl"], NOBODY),
        ];
        let installer = one(
            "installer",
            "Puts nanogpu into the scheduler of a kubeadm cluster, and takes it out again",
            "nanogpu-install",
            &["installer"],
            // It writes what belongs to root.
            "0:0",
        );
        if self.programs.join(installer.program).is_file() {
            products.push(installer);
        }
        products.retain(|it| self.wanted.is_empty() || self.wanted.contains(&it.name));
        products
    }
}

/// Writes the product's images into `folder`, each with a Containerfile and the list of its contents.
pub fn product_images(parts: &Parts, folder: &Path) -> anyhow::Result<Vec<Made>> {
    let linked = Linked::ask(&parts.features)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    parts.products().iter().map(|product| make(product, parts, &linked, folder)).collect()
}

/// The kube-scheduler that the testbed runs, as an image: for clusters that reach no registry.
pub fn kube_scheduler_image(binaries: &Binaries, folder: &Path) -> anyhow::Result<Made> {
    let root = folder.join("kube-scheduler.rootfs");
    folders::bare(&root)?;
    let program = root.join("usr/local/bin/kube-scheduler");
    fs::create_dir_all(root.join("usr/local/bin"))?;
    fs::copy(binaries.path(Program::Scheduler), program).context("cannot copy kube-scheduler")?;
    let name = format!("localhost/nanogpu/kube-scheduler:{}", binaries.version(Program::Scheduler));
    let image = Image::new(&name, &root)
        .env("PATH", "/usr/local/bin")
        .entrypoint(&["kube-scheduler"])
        .user(NOBODY);
    let archive = write_one(&image, folder, "kube-scheduler")?;
    let size = fs::metadata(&archive)?.len();
    Ok(Made { name, archive, sbom: None, size, user: NOBODY.to_owned(), crates: 0 })
}

fn make(
    product: &Product<'_>,
    parts: &Parts,
    linked: &Linked,
    folder: &Path,
) -> anyhow::Result<Made> {
    let context = || format!("cannot make the image of {}", product.name);
    let root = folder.join(format!("{}.rootfs", product.name));
    folders::bare(&root).with_context(context)?;
    let entry = format!("/usr/bin/{}", product.program);
    let program = product.folder.join(product.program);
    let mut inside = vec![(program.as_path(), entry.as_str())];
    inside.extend(product.files.iter().copied());
    for (from, to) in &inside {
        slim(from, &root.join(to.trim_start_matches('/'))).with_context(context)?;
    }
    let files: Vec<&Path> = inside.iter().map(|(from, _)| *from).collect();
    let copied = libraries::copy(&files, product.opens, &root).with_context(context)?;

    let (crates, arrows) = linked.below(product.packages)?;
    let piece = |path: &str| -> anyhow::Result<Piece> {
        let bytes = fs::read(root.join(path.trim_start_matches('/')))?;
        Ok(Piece { path: path.to_owned(), sha256: archive::hash(&bytes) })
    };
    let programs = inside
        .iter()
        .zip(product.packages)
        .map(|((_, to), package)| Ok(((*package).to_owned(), piece(to)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let libraries = copied
        .iter()
        .map(|path| piece(&path.display().to_string()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let document = sbom::document(&sbom::Contents {
        image: product.name,
        version: &parts.tag,
        crates: &crates,
        arrows: &arrows,
        programs: &programs,
        libraries: &libraries,
    });
    let document = serde_json::to_string_pretty(&document)? + "\n";
    let file = format!("{}.spdx.json", product.name);
    let sbom = folder.join(&file);
    fs::create_dir_all(root.join("usr/share/sbom"))?;
    for place in [&sbom, &root.join("usr/share/sbom").join(&file)] {
        fs::write(place, &document).with_context(|| format!("cannot write {}", place.display()))?;
    }

    let name = format!("{}/{}:{}", parts.prefix, product.name, parts.tag);
    let mut image = Image::new(&name, &root)
        .entrypoint(&[&entry])
        .env("PATH", "/usr/bin")
        .user(product.user)
        .label("org.opencontainers.image.title", &format!("nanogpu {}", product.name))
        .label("org.opencontainers.image.description", product.about)
        .label("org.opencontainers.image.version", &parts.tag)
        .label("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE"))
        .label("org.opencontainers.image.source", env!("CARGO_PKG_REPOSITORY"));
    if let Some(revision) = &parts.revision {
        image = image.label("org.opencontainers.image.revision", revision);
    }
    for (key, value) in product.env {
        image = image.env(key, value);
    }
    let archive = write_one(&image, folder, product.name)?;
    let size = fs::metadata(&archive)?.len();
    let user = product.user.to_owned();
    Ok(Made { name, archive, sbom: Some(sbom), size, user, crates: crates.len() })
}

/// Copies a program without what only helps a debugger, which is most of it. Where there is no
/// `strip` it is copied as it is.
fn slim(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).output();
    if !stripped.is_ok_and(|output| output.status.success()) {
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::images::elf;

    /// An image of this very test, made as those of the product are.
    fn made(folder: &Path, extra: &Path) -> Made {
        let own = std::env::current_exe().unwrap();
        let parts = Parts {
            programs: own.parent().unwrap().to_owned(),
            agent: PathBuf::new(),
            limiter: extra.to_owned(),
            features: Features::Packages(vec!["testbed".to_owned()]),
            wanted: Vec::new(),
            prefix: "localhost/x".to_owned(),
            tag: "1.2".to_owned(),
            revision: Some("abc".to_owned()),
        };
        let product = Product {
            name: "own",
            about: "A test",
            program: own.file_name().unwrap().to_str().unwrap(),
            folder: own.parent().unwrap(),
            packages: &["testbed"],
            user: NOBODY,
            files: vec![(extra, "/usr/lib/nanogpu/extra.so")],
            opens: NVML,
            env: &[("A", "b")],
        };
        let linked = Linked::ask(&parts.features).unwrap();
        make(&product, &parts, &linked, folder).unwrap()
    }

    /// The configuration in an archive.
    fn config(archive: &Path) -> Value {
        let mut archive = tar::Archive::new(fs::File::open(archive).unwrap());
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let documents = entries.filter_map(|entry| serde_json::from_reader::<_, Value>(entry).ok());
        documents.into_iter().find(|it| it.get("rootfs").is_some()).unwrap()["config"].take()
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
        }
        found
    }

    #[test]
    fn an_image_has_a_program_its_libraries_its_contents_and_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let extra = libraries::find("libm.so.6").unwrap();
        let made = made(folder.path(), &extra);
        assert_eq!(made.name, "localhost/x/own:1.2");
        let config = config(&made.archive);
        assert_eq!(config["User"], NOBODY);
        let label =
            |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
        assert_eq!(label("title"), "nanogpu own");
        assert_eq!(label("version"), "1.2");
        assert_eq!(label("revision"), "abc");
        assert_eq!(label("licenses"), "Apache-2.0");

        let root = folder.path().join("own.rootfs");
        let all = files(&root);
        let names: BTreeSet<&str> =
            all.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        for path in &all {
            let bytes = fs::read(path).unwrap();
            if elf::is_elf(&bytes) {
                let needs = elf::needs(&bytes).unwrap();
                for name in &needs.libraries {
                    assert!(names.contains(name.as_str()), "{} needs {name}", path.display());
                }
                let loader = needs.loader.unwrap_or_default();
                assert!(root.join(loader.trim_start_matches('/')).exists(), "{loader}");
            }
        }
        assert!(!names.contains("sh") && !names.contains("busybox"), "{names:?}");
        let accounts = fs::read_to_string(root.join("etc/passwd")).unwrap();
        assert!(accounts.contains(":65532:65532:"), "{accounts}");

        let outside = fs::read(made.sbom.unwrap()).unwrap();
        assert_eq!(fs::read(root.join("usr/share/sbom/own.spdx.json")).unwrap(), outside);
        let document: Value = serde_json::from_slice(&outside).unwrap();
        let listed = |name: &str| {
            let packages = document["packages"].as_array().unwrap();
            packages.iter().find(|package| package["name"] == name).cloned()
        };
        let tar = listed("tar").unwrap();
        assert_eq!(tar["checksums"][0]["algorithm"], "SHA256");
        assert_eq!(tar["licenseDeclared"], "MIT OR Apache-2.0");
        assert!(listed("testbed").is_some());
        // Used when it is built, and in tests; not in it.
        assert!(listed("clap_derive").is_none() && listed("kubelet").is_none());
        assert!(files(&root).iter().filter(|path| path.ends_with("libc.so.6")).count() == 1);
        assert!(document["packages"].to_string().contains("libc.so.6"));
    }

    #[test]
    fn the_same_parts_give_the_same_image() {
        let extra = libraries::find("libm.so.6").unwrap();
        let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, two] =
            [&one, &two].map(|folder| fs::read(made(folder.path(), &extra).archive).unwrap());
        assert!(one == two);
    }
}
