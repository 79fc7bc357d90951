//! A machine that was opened: its description, its state, and the way to change it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::clock;
use crate::description::{self, Description, DescriptionError};
use crate::engine::{Rules, catch_up, keep_up};
use crate::journal::Change;
use crate::lock;
use crate::process::{JoinError, Process};
use crate::roster::Newcomer;
use crate::slots::{Life, Locks, identity, pid_namespace};
use crate::state::{MAGIC, SLOTS, State, VERSION, get, wide};

/// Names the folder of the machine to use.
pub const VARIABLE: &str = "NANOGPU_SIMGPU";
/// The folder of the machine where the variable is not set.
pub const DEFAULT_FOLDER: &str = "/run/nanogpu-simgpu";

const STATE_FILE: &str = "state";

/// How often, in nanoseconds, whoever comes by looks for dead processes.
const SWEEP_EVERY: u64 = 5_000_000;

/// Why a machine cannot be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Its description is missing or wrong.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// One of its files cannot be used.
    #[error("cannot {act} {path}")]
    File {
        /// What was tried.
        act: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The state was written by another version.
    #[error("the state in {path} is of another version; create the machine anew")]
    Version {
        /// Which.
        path: PathBuf,
    },
    /// There is one already.
    #[error("there is a machine in {path}; remove the folder first")]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// No more processes.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// A simulated machine. Once opened it stays open until the process ends.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
    /// Device and inode of the state, because a folder may be made anew.
    file: (u64, u64),
    description: Description,
    pub(crate) rules: Rules,
    pub(crate) state: &'static State,
    pub(crate) locks: Locks,
    /// The slot of this process and 1.
    own: AtomicU64,
    /// Who this process is.
    identity: AtomicU64,
    /// On a page that a fork wipes: 1 in the process that joined.
    joined: &'static AtomicU64,
}

/// What was seen of slots: who claimed each, and whether that one lived.
#[derive(Debug)]
pub(crate) struct Lives(Vec<(u64, Life)>);

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

static OPEN: Mutex<Vec<&'static Machine>> = Mutex::new(Vec::new());

impl Machine {
    /// The machine that the variable names, or the one in the usual folder.
    pub fn find() -> Result<&'static Self, MachineError> {
        let folder = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
        Self::open(&folder.map_or_else(|| PathBuf::from(DEFAULT_FOLDER), PathBuf::from))
    }

    /// Makes a machine in a folder, and opens it.
    pub fn create(folder: &Path, description: &Description) -> Result<&'static Self, MachineError> {
        let description = description.clone().checked()?;
        let file = |act, path: &Path| {
            let path = path.to_owned();
            move |source| MachineError::File { act, path, source }
        };
        fs::create_dir_all(folder).map_err(file("make", folder))?;
        let path = folder.join(description::FILE);
        if path.exists() {
            return Err(MachineError::Exists { path: folder.to_owned() });
        }
        let state_path = folder.join(STATE_FILE);
        write_state(&state_path).map_err(file("write", &state_path))?;
        // Every process of the host may use the GPUs, whoever runs it.
        let locks_path = folder.join(crate::slots::FILE);
        File::create(&locks_path)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o666)))
            .map_err(file("write", &locks_path))?;
        // The description comes last: with it the machine is there, whole.
        let text = serde_json::to_string_pretty(&description)
            .map_err(|source| DescriptionError::Json { path: path.clone(), source })?;
        fs::write(&path, text + "\n").map_err(file("write", &path))?;
        let machine = Self::open(folder)?;
        machine.change(|change| {
            for (card, state) in machine.description.cards.iter().zip(&machine.state.devices) {
                crate::settings::initial(change, card, state);
            }
        })?;
        Ok(machine)
    }

    /// Opens the machine of a folder.
    pub fn open(folder: &Path) -> Result<&'static Self, MachineError> {
        let path = folder.join(STATE_FILE);
        let file = |act, path: &Path| {
            let path = path.to_owned();
            move |source| MachineError::File { act, path, source }
        };
        let description = Description::read(folder)?;
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let opened = opened.map_err(file("open", &path))?;
        let metadata = opened.metadata().map_err(file("open", &path))?;
        let known = (metadata.dev(), metadata.ino());
        let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(machine) = open.iter().find(|machine| machine.file == known) {
            return Ok(machine);
        }
        if metadata.len() != wide(size_of::<State>()) {
            return Err(MachineError::Version { path });
        }
        let state = map_state(&opened).map_err(file("map", &path))?;
        if get(&state.header.magic) != MAGIC || get(&state.header.version) != VERSION {
            return Err(MachineError::Version { path });
        }
        let locks = Locks::open(folder).map_err(file("open", &folder.join(crate::slots::FILE)))?;
        let rules = rules(&description);
        let machine: &'static Self = Box::leak(Box::new(Self {
            folder: folder.to_owned(),
            file: known,
            description,
            rules,
            state,
            locks,
            own: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            joined: page_wiped_by_fork().map_err(file("map", &path))?,
        }));
        open.push(machine);
        drop(open);
        machine.change(clock::mend)?;
        Ok(machine)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it has.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// This process in it. After a fork the child is another one.
    pub fn process(&'static self) -> Result<Process, JoinError> {
        let own = self.own.load(Ordering::Acquire);
        if self.joined.load(Ordering::Acquire) == 1
            && let Ok(slot) = usize::try_from(own)
            && let Some(slot) = slot.checked_sub(1)
        {
            return Ok(Process::at(self, slot));
        }
        let process = self.another_process()?;
        let slot = wide(process.slot + 1);
        if self.own.compare_exchange(own, slot, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.joined.store(1, Ordering::Release);
            return Ok(process);
        }
        // Another thread was faster.
        process.leave();
        self.process()
    }

    /// One more process that lives as long as this one, as if it were on its own.
    pub fn another_process(&'static self) -> Result<Process, JoinError> {
        if self.joined.load(Ordering::Acquire) == 0 {
            // Not joined yet, or a child that has its parent's memory.
            self.identity.store(identity(), Ordering::Release);
        }
        let claimed = self.locks.claim(self.state, self.identity.load(Ordering::Acquire));
        let slot = claimed.ok_or(JoinError::Full)?;
        // Before anything else: whoever waits for a lock that the former owner of the slot took
        // to its grave tells the two apart by this.
        self.state.slots[slot].generation.fetch_add(1, Ordering::AcqRel);
        let process = Process::at(self, slot);
        let newcomer = Newcomer::here();
        touch(self.state, slot);
        self.change_as(&process, |change| {
            let now = self.now().max(get(&self.state.header.time));
            crate::roster::enter(change, slot, &newcomer, now);
        });
        Ok(process)
    }

    /// Changes the state, as this process.
    pub(crate) fn change<R>(&'static self, act: impl FnOnce(&Change) -> R) -> Result<R, JoinError> {
        let process = self.process()?;
        Ok(self.change_as(&process, act))
    }

    /// Changes the state, as this process, when what dead processes held was taken back.
    pub(crate) fn change_swept<R>(
        &'static self,
        act: impl FnOnce(&Change, &Lives) -> R,
    ) -> Result<R, JoinError> {
        // First: who did not join does not know its own slots, and would take them for a dead one's.
        let process = self.process()?;
        let lives = self.lives();
        Ok(self.change_as(&process, |change| {
            self.sweep(change, &lives);
            act(change, &lives)
        }))
    }

    /// Changes the state.
    pub(crate) fn change_as<R>(&self, process: &Process, act: impl FnOnce(&Change) -> R) -> R {
        let header = &self.state.header;
        let lives = self.sweep_is_due().then(|| self.lives());
        let generation = get(&self.state.slots[process.slot].generation);
        lock::acquire(&header.lock, lock::owner(process.slot, generation), |slot, held| {
            self.is_dead(slot, held)
        });
        let unlock = || lock::release(&header.lock);
        let change = Change::begin(self.state, &unlock);
        if let Some(lives) = &lives {
            self.sweep(&change, lives);
        }
        act(&change)
    }

    fn is_dead(&self, slot: usize, generation: u64) -> bool {
        let Some(state) = self.state.slots.get(slot) else { return true };
        !lock::same_generation(generation, get(&state.generation))
            || matches!(self.life(slot), Life::Dead | Life::Free)
    }

    pub(crate) fn life(&self, slot: usize) -> Life {
        let state = &self.state.slots[slot];
        self.locks.life(slot, state, self.identity.load(Ordering::Acquire))
    }

    /// Whether what is in a slot is of the process that claims it.
    pub(crate) fn has_entered(&self, slot: usize) -> bool {
        let slot = &self.state.slots[slot];
        get(&slot.claim) != 0 && get(&slot.entered) == get(&slot.claim)
    }

    fn sweep_is_due(&self) -> bool {
        let clock = clock::host_about();
        let last = get(&self.state.header.swept);
        // The host's clock starts anew when it does.
        clock < last || clock - last >= SWEEP_EVERY
    }

    /// Looks at all slots. Not for those who have the lock: the kernel is asked about each, and who is
    /// put off the processor meanwhile would hold up everybody.
    pub(crate) fn lives(&self) -> Lives {
        let used = usize::try_from(get(&self.state.header.slots_used)).unwrap_or(SLOTS);
        let look = |slot: usize| (get(&self.state.slots[slot].claim), self.life(slot));
        Lives((0..used.min(SLOTS)).map(look).collect())
    }

    /// What was seen of a slot, if it is still the same process's; else it is looked at now.
    pub(crate) fn life_seen(&self, lives: &Lives, slot: usize) -> Life {
        match lives.0.get(slot) {
            Some((claim, life)) if *claim == get(&self.state.slots[slot].claim) => *life,
            _ => self.life(slot),
        }
    }

    /// Takes back what dead processes held.
    pub(crate) fn sweep(&self, change: &Change, lives: &Lives) {
        change.set(&self.state.header.swept, clock::host_about());
        let on_host = self.on_host();
        for (slot, (claim, _)) in lives.0.iter().enumerate() {
            match self.life_seen(lives, slot) {
                Life::Dead => {
                    crate::roster::leave(change, slot);
                    change.commit();
                    // Someone may be claiming it at this moment; then it is theirs.
                    let word = &self.state.slots[slot].claim;
                    let _ = word.compare_exchange(*claim, 0, Ordering::AcqRel, Ordering::Acquire);
                    crate::wait::wake_all(self.state);
                }
                // Between claiming a slot and entering it there is what a dead one left.
                _ if !self.has_entered(slot) => crate::roster::leave(change, slot),
                life if on_host => {
                    let pid = match life {
                        Life::Mine => std::process::id(),
                        Life::Alive(pid) => pid,
                        Life::Free | Life::Dead => 0,
                    };
                    if pid != 0 {
                        change.set(&self.state.slots[slot].name.host_pid, u64::from(pid));
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether this process is in the PID namespace of who made the machine.
    pub(crate) fn on_host(&self) -> bool {
        get(&self.state.header.host_namespace) == pid_namespace_once()
    }

    /// Device time.
    pub fn now(&self) -> u64 {
        clock::now(&self.description, self.state)
    }

    /// Simulates up to now, so that all counts are exact.
    pub(crate) fn catch_up(&self, change: &Change) -> u64 {
        let now = self.now().max(get(&self.state.header.time));
        catch_up(change, &self.rules, now);
        now
    }

    /// Simulates up to now if something happened.
    pub(crate) fn keep_up(&self, change: &Change) -> u64 {
        let now = self.now().max(get(&self.state.header.time));
        keep_up(change, &self.rules, now);
        now
    }

    pub(crate) fn forget_process(&self, slot: usize) {
        let own = wide(slot + 1);
        let _ = self.own.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Acquire);
    }
}

fn pid_namespace_once() -> u64 {
    // It cannot change for a process that runs, only for its children.
    static CACHE: AtomicU64 = AtomicU64::new(0);
    static PID: AtomicU64 = AtomicU64::new(0);
    let pid = u64::from(std::process::id());
    if PID.swap(pid, Ordering::AcqRel) != pid {
        CACHE.store(pid_namespace(), Ordering::Release);
    }
    CACHE.load(Ordering::Acquire)
}

fn rules(description: &Description) -> Rules {
    let card =
        |card: &description::Card| (u64::from(card.multiprocessors), u64::from(card.copy_engines));
    Rules {
        quantum: description.quantum_ns.max(1),
        jitter: u64::from(description.jitter_percent.min(100)),
        seed: description.seed,
        together: description.mps,
        cards: description.cards.iter().map(card).collect(),
    }
}

fn write_state(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o666).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o666))?;
    file.write_all(&MAGIC.to_ne_bytes())?;
    file.write_all(&VERSION.to_ne_bytes())?;
    file.set_len(wide(size_of::<State>()))?;
    let state = map_state(&file_for_mapping(path)?)?;
    state.header.epoch.store(clock::host(), Ordering::Release);
    state.header.host_namespace.store(pid_namespace(), Ordering::Release);
    Ok(())
}

fn file_for_mapping(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn map_state(file: &File) -> std::io::Result<&'static State> {
    // SAFETY: a new mapping of the whole file, which has the size of a state; nobody shrinks it,
    // and it is never unmapped.
    let map = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            size_of::<State>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    // SAFETY: the mapping is aligned to a page, as large as a state and lives on; a state is made
    // of atomics, so any bytes are valid and other writers are sound.
    Ok(unsafe { &*map.cast::<State>() })
}

/// Has the kernel map what a process that joins is about to write, which would else be done page by page
/// under the lock. Where it cannot, that is what happens.
fn touch(state: &State, slot: usize) {
    let size = rustix::param::page_size();
    let slot = &state.slots[slot];
    let parts = [
        (std::ptr::from_ref(&state.header) as usize, 1 << 14),
        (std::ptr::from_ref(&state.devices[0]) as usize, size_of::<crate::state::Device>()),
        (std::ptr::from_ref(slot) as usize, std::mem::offset_of!(crate::state::Slot, items)),
    ];
    for (begin, length) in parts {
        let (from, to) = (begin / size * size, (begin + length).div_ceil(size) * size);
        let at = from as *mut std::ffi::c_void;
        // SAFETY: pages of the state's mapping, whose words stay as they are.
        let _ = unsafe { rustix::mm::madvise(at, to - from, Advice::LinuxPopulateWrite) };
    }
}

/// A word that is zero again in a child.
fn page_wiped_by_fork() -> std::io::Result<&'static AtomicU64> {
    let size = rustix::param::page_size();
    // SAFETY: a new mapping that is never unmapped.
    let map = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // SAFETY: exactly the mapping above, which holds nothing yet.
    unsafe { rustix::mm::madvise(map, size, Advice::LinuxWipeOnFork) }?;
    // SAFETY: aligned to a page, zeroed, and it lives on.
    Ok(unsafe { &*map.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    use crate::state::get;
    use crate::{Choices, Description, DeviceId, Machine, Memory};

    fn machine() -> (tempfile::TempDir, &'static Machine) {
        let folder = tempfile::tempdir().unwrap();
        let description = Description::from_profile("vm-x4", &Choices::default()).unwrap();
        let machine = Machine::create(folder.path(), &description).unwrap();
        (folder, machine)
    }

    /// Runs `act` in a child, which does not outlive it, and waits for its end.
    fn in_child(act: impl FnOnce()) {
        // SAFETY: the child runs only `act`, which depends on no other thread, and then ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            act();
            // SAFETY: ends this process and nothing else.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local that lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    }

    #[test]
    fn a_lock_is_taken_from_a_holder_that_was_killed() {
        let (_folder, machine) = machine();
        let card = DeviceId::new(0).unwrap();
        let process = machine.process().unwrap();
        process.reserve(card, Memory::Allocation, 5).unwrap();
        in_child(|| {
            let child = machine.process().unwrap();
            child.reserve(card, Memory::Allocation, 7).unwrap();
            machine.change_as(&child, |change| {
                // Half of a change, to itself and to another, and no more.
                let account = &machine.state.slots[child.slot].accounts[0];
                change.set(&account.memory[0], 1 << 40);
                change.set(&machine.state.slots[process.slot].accounts[0].memory[2], 1 << 40);
                // SAFETY: kills this process and nothing else.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
        });
        assert_ne!(machine.state.header.lock.load(std::sync::atomic::Ordering::Acquire), 0);
        assert_eq!(machine.memory(card).unwrap().used, 5);
        assert_eq!(get(&machine.state.journal.count), 0);
    }

    #[test]
    fn a_slot_is_used_again_after_its_process_was_killed_with_the_lock() {
        let (_folder, machine) = machine();
        let card = DeviceId::new(0).unwrap();
        // Nobody but the dead has ever joined, so the next takes the very slot of the lock's
        // holder.
        in_child(|| {
            let child = machine.another_process().unwrap();
            machine.change_as(&child, |_| {
                // SAFETY: kills this process and nothing else.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
        });
        let next = machine.another_process().unwrap();
        next.reserve(card, Memory::Allocation, 3).unwrap();
        assert_eq!(machine.memory(card).unwrap().used, 3);
    }
}
