//! Writing an OCI image archive: one layer, its configuration, and an index.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// An image to be made from a folder.
///
/// The same folder gives the same bytes: owners are root, times are zero, names are sorted.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    root: PathBuf,
    entrypoint: Vec<String>,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    user: String,
}

impl Image {
    /// An image called `name` (with a tag) whose files are those below `root`.
    pub fn new(name: &str, root: &Path) -> Self {
        Self {
            name: name.to_owned(),
            root: root.to_owned(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            user: String::new(),
        }
    }

    /// What always runs.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(ToString::to_string).collect();
        self
    }

    /// What runs unless a pod says otherwise.
    #[must_use]
    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(ToString::to_string).collect();
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Says something about the image.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs as `user`, a number or `uid:gid`.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// Writes the archive, whole or not at all.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        self.attempt(file).with_context(|| format!("cannot write the image {}", file.display()))
    }

    /// The same image as a recipe for a container engine, to be built in the folder its root lies in.
    pub fn containerfile(&self) -> String {
        let root = self.root.file_name().unwrap_or_default().to_string_lossy();
        let mut lines = vec!["FROM scratch".to_owned(), format!("ADD {root} /")];
        // JSON quotes as a Containerfile does.
        lines.extend(self.env.iter().map(|(name, value)| format!("ENV {name}={}", json!(value))));
        lines.extend(
            self.labels.iter().map(|(name, value)| format!("LABEL {name}={}", json!(value))),
        );
        if !self.user.is_empty() {
            lines.push(format!("USER {}", self.user));
        }
        for (key, words) in [("ENTRYPOINT", &self.entrypoint), ("CMD", &self.command)] {
            if !words.is_empty() {
                lines.push(format!("{key} {}", json!(words)));
            }
        }
        lines.join("\n") + "\n"
    }

    fn attempt(&self, file: &Path) -> anyhow::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // The layer's digest stands before it in the archive's index, so it is made first.
        let mut layer = tempfile::tempfile_in(folder)?;
        write_layer(&self.root, &mut layer)?;
        let (digest, size) = measure(&mut layer)?;
        let config = serde_json::to_vec(&self.config(&digest))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &hash(&config), config.len() as u64),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &digest, size)],
        }))?;
        let index = serde_json::to_vec(&self.index(&manifest))?;

        let target = tempfile::NamedTempFile::new_in(folder)?;
        let mut archive = Builder::new(BufWriter::new(target.as_file()));
        put(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        put(&mut archive, "index.json", &index)?;
        put(&mut archive, &blob(&hash(&config)), &config)?;
        put(&mut archive, &blob(&hash(&manifest)), &manifest)?;
        layer.seek(SeekFrom::Start(0))?;
        let mut header = plain(EntryType::Regular, 0o644, size);
        archive.append_data(&mut header, blob(&digest), &mut layer)?;
        archive.into_inner()?.flush()?;
        // Temporary files are for their owner only; an image is for whoever wants it.
        target.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        target.persist(file).map_err(|error| error.error)?;
        Ok(())
    }

    fn config(&self, layer: &str) -> Value {
        let env: Vec<String> =
            self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut run = json!({"Env": env});
        for (key, words) in [("Entrypoint", &self.entrypoint), ("Cmd", &self.command)] {
            if !words.is_empty() {
                run[key] = json!(words);
            }
        }
        if !self.user.is_empty() {
            run["User"] = json!(self.user);
        }
        if !self.labels.is_empty() {
            run["Labels"] = json!(self.labels);
        }
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
            "history": [{"created_by": "nanogpu"}],
        })
    }

    fn index(&self, manifest: &[u8]) -> Value {
        let mut entry = descriptor(
            "application/vnd.oci.image.manifest.v1+json",
            &hash(manifest),
            manifest.len() as u64,
        );
        entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
        // containerd reads the first, other tools the second.
        entry["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name,
        });
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        })
    }
}

/// As OCI names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn descriptor(media_type: &str, digest: &str, size: u64) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
}

fn blob(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

pub(super) fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let digits = b"0123456789abcdef";
    let digit = |value: u8| char::from(digits[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn measure(file: &mut File) -> io::Result<(String, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut size = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex(&hasher.finalize()), size));
        }
        hasher.update(&buffer[..count]);
        size += count as u64;
    }
}

fn put<W: Write>(archive: &mut Builder<W>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = plain(EntryType::Regular, 0o644, bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)
}

/// An entry of root's, from the beginning of time.
fn plain(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn write_layer(root: &Path, file: &mut File) -> anyhow::Result<()> {
    let mut layer = Builder::new(BufWriter::new(file));
    add(&mut layer, root, Path::new(""))?;
    layer.into_inner()?.flush()?;
    Ok(())
}

/// Adds what lies in `root/below`, in order of name.
fn add<W: Write>(layer: &mut Builder<W>, root: &Path, below: &Path) -> anyhow::Result<()> {
    let folder = root.join(below);
    let mut names = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        names.push(entry?.file_name());
    }
    names.sort();
    for name in names {
        let inside = below.join(&name);
        let path = root.join(&inside);
        let known = fs::symlink_metadata(&path)?;
        let mode = known.mode() & 0o7777;
        if known.is_symlink() {
            let mut header = plain(EntryType::Symlink, 0o777, 0);
            layer.append_link(&mut header, &inside, fs::read_link(&path)?)?;
        } else if known.is_dir() {
            let mut header = plain(EntryType::Directory, mode, 0);
            layer.append_data(&mut header, &inside, io::empty())?;
            add(layer, root, &inside)?;
        } else if known.is_file() {
            let mut header = plain(EntryType::Regular, mode, known.len());
            layer.append_data(&mut header, &inside, File::open(&path)?)?;
        } else {
            // Sockets, devices and pipes belong to a running system.
            anyhow::bail!("{} is neither a file, a folder nor a link", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/b"), "b").unwrap();
        fs::write(folder.path().join("bin/a"), "aa").unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("bin/link")).unwrap();
        folder
    }

    fn entries(file: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(File::open(file).unwrap());
        let mut found = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        found
    }

    #[test]
    fn every_digest_is_that_of_its_blob() {
        let root = folder();
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("i.tar");
        Image::new("localhost/x:1", root.path())
            .command(&["a"])
            .env("A", "b")
            .write(&file)
            .unwrap();
        let entries = entries(&file);
        let blobs: Vec<_> = entries.iter().filter(|(name, _)| name.starts_with("blobs/")).collect();
        assert_eq!(blobs.len(), 3, "a layer, a configuration, a manifest");
        for (name, bytes) in blobs {
            assert_eq!(*name, blob(&hash(bytes)));
        }
        let index: Value = serde_json::from_slice(&entries["index.json"]).unwrap();
        let manifest = &index["manifests"][0];
        assert_eq!(manifest["annotations"]["io.containerd.image.name"], "localhost/x:1");
        let digest = manifest["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        assert!(entries.contains_key(&blob(digest)));
    }

    #[test]
    fn the_same_folder_gives_the_same_archive() {
        let out = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| out.path().join(name));
        for file in [&one, &two] {
            Image::new("localhost/x:1", folder().path()).write(file).unwrap();
        }
        assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
    }

    #[test]
    fn a_containerfile_says_the_same() {
        let image = Image::new("localhost/x:1", Path::new("/a/x.rootfs"))
            .entrypoint(&["/bin/sh", "-c", "echo \"hi\""])
            .env("A", "b c")
            .label("l", "m")
            .user("1000");
        let expected = "FROM scratch\nADD x.rootfs /\nENV A=\"b c\"\nLABEL l=\"m\"\nUSER 1000\nENTRYPOINT [\"/bin/sh\",\"-c\",\"echo \\\"hi\\\"\"]\n";
        assert_eq!(image.containerfile(), expected);
    }

    #[test]
    fn links_stay_links() {
        let mut file = tempfile::tempfile().unwrap();
        write_layer(folder().path(), &mut file).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut layer = tar::Archive::new(file);
        let names: Vec<(String, EntryType)> = layer
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .map(|entry| (entry.path().unwrap().display().to_string(), entry.header().entry_type()))
            .collect();
        let names: Vec<(&str, EntryType)> =
            names.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        assert_eq!(
            names,
            [
                ("bin", EntryType::Directory),
                ("bin/a", EntryType::Regular),
                ("bin/b", EntryType::Regular),
                ("bin/link", EntryType::Symlink),
            ]
        );
    }

    #[test]
    fn a_missing_folder_leaves_nothing_behind() {
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("i.tar");
        let error = Image::new("localhost/x:1", Path::new("/nowhere")).write(&file).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere"), "{error:#}");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
