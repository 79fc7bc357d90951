//! The folder of a user's programs, and the room of each.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use gpu::DriverFile;
use page::{Limits, Name, write_counters, write_limits};
use turns::{Pages, make_door};

/// The libraries ours stands in for.
const REPLACED: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// What a program may use of a card.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) device: String,
    pub(crate) memory: u64,
    pub(crate) cores: u32,
    pub(crate) burst: u32,
}

/// The folder that all programs of a user share.
#[derive(Debug, Clone)]
pub(crate) struct Base(PathBuf);

/// The room of one program; it goes with it.
#[derive(Debug)]
pub(crate) struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        // What stays behind is removed by the next.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Room {
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Where our library stands under the driver's names.
    pub(crate) fn library_path(&self) -> PathBuf {
        self.0.join("lib")
    }
}

impl Base {
    /// Below `XDG_RUNTIME_DIR`, else below the folder for temporary files.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let user = rustix::process::getuid().as_raw();
        let path = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
            Some(folder) => Path::new(&folder).join("nanogpu-run"),
            None => std::env::temp_dir().join(format!("nanogpu-run-{user}")),
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.with_context(|| format!("make {}", path.display()))?;
        let seen = fs::symlink_metadata(&path)?;
        let ours = seen.is_dir() && seen.uid() == user && seen.mode() & 0o022 == 0;
        ensure!(ours, "{} is not a folder that only you can write", path.display());
        Ok(Self(path))
    }

    /// The lock of whoever referees.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("referee.lock")
    }

    /// Makes the room of a program of this process.
    pub(crate) fn make(
        &self,
        shares: &[Share],
        files: &[DriverFile],
        library: &Path,
    ) -> anyhow::Result<Room> {
        self.sweep();
        let room = Room(self.0.join(format!("{ROOM}{}", std::process::id())));
        let path = &room.0;
        let _ = fs::remove_dir_all(path);
        let built = (|| -> anyhow::Result<()> {
            for below in ["driver", "lib", "pages"] {
                DirBuilder::new().recursive(true).mode(0o700).create(path.join(below))?;
            }
            fs::create_dir_all(self.0.join("doors"))?;
            for name in REPLACED {
                let genuine = files.iter().find(|file| file.name == name);
                let genuine = genuine.with_context(|| format!("the driver has no {name}"))?;
                ensure!(
                    genuine.path != library,
                    "{name} of the driver is our own library; --driver-root says where the driver is"
                );
                symlink(&genuine.path, path.join("driver").join(name))?;
                symlink(library, path.join("lib").join(name))?;
            }
            for (place, share) in shares.iter().enumerate() {
                let file = |kind: &str| path.join(format!("pages/{place}.{kind}"));
                fs::write(file("counters"), write_counters())?;
                let door = self.0.join("doors").join(&share.device);
                make_door(&door)?;
                fs::hard_link(&door, file("door"))?;
                fs::write(file("limits"), write_limits(&limits(place, share)?))?;
            }
            Ok(())
        })();
        built.with_context(|| format!("fill {}", path.display()))?;
        Ok(room)
    }

    /// The pages of all programs: the card, a name, the files and the door.
    pub(crate) fn pages(&self) -> Vec<(String, String, Pages, PathBuf)> {
        let mut found = Vec::new();
        for (name, room) in self.rooms() {
            for place in 0.. {
                let file = |kind: &str| room.join(format!("pages/{place}.{kind}"));
                let Ok(bytes) = fs::read(file("limits")) else { break };
                let Ok(limits) = page::read_limits(&bytes) else { break };
                let pages = Pages { limits: file("limits"), counters: file("counters") };
                let device = limits.device.as_str().to_owned();
                found.push((device, format!("{name}/{place}"), pages, file("door")));
            }
        }
        found
    }

    fn rooms(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.starts_with(ROOM).then(|| (name, entry.path()))
        })
    }

    /// Removes rooms whose process is gone.
    fn sweep(&self) {
        for (name, room) in self.rooms() {
            let pid = name.strip_prefix(ROOM).and_then(|pid| pid.parse::<i32>().ok());
            let pid = pid.and_then(rustix::process::Pid::from_raw);
            let gone = pid.is_some_and(|pid| {
                rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
            });
            if gone {
                let _: io::Result<()> = fs::remove_dir_all(room);
            }
        }
    }
}

const ROOM: &str = "room-";

fn limits(place: usize, share: &Share) -> anyhow::Result<Limits> {
    let name = |text: &str| Name::new(text).context("name a page");
    // A whole card is not held back.
    let cores = if share.cores >= 100 { 0 } else { share.cores };
    Ok(Limits {
        device: name(&share.device)?,
        pod: name("nanogpu-run")?,
        container: name(&std::process::id().to_string())?,
        memory: share.memory,
        cores,
        burst: share.burst,
        place: u32::try_from(place).context("too many cards")?,
        granted: cores * 100,
        tenants: 1,
    })
}
