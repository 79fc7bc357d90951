//! Processes coming and going.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

use crate::account::{clear, total};
use crate::journal::Change;
use crate::queue;
use crate::slots::pid_namespace;
use crate::state::{CARDS, GONE, Name, Word, at, get};

/// Names a process, so that its GPU time can be told from others' after its end.
pub const TAG_VARIABLE: &str = "NANOGPU_SIMGPU_TAG";

/// What a process that joins says of itself. The kernel is asked before the lock is taken.
#[derive(Debug)]
pub(crate) struct Newcomer {
    namespace: u64,
    group: u64,
    command: OsString,
    tag: OsString,
}

impl Newcomer {
    /// This process.
    pub(crate) fn here() -> Self {
        let command = std::env::current_exe().ok();
        let command = command.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        Self {
            namespace: pid_namespace(),
            group: control_group(),
            command: command.to_owned(),
            tag: std::env::var_os(TAG_VARIABLE).unwrap_or_default(),
        }
    }
}

/// Readies the slot of a process that just claimed it.
pub(crate) fn enter(change: &Change, place: usize, newcomer: &Newcomer, now: u64) {
    leave(change, place);
    let slot = &change.state.slots[place];
    change.set(&slot.entered, get(&slot.claim));
    let name = &change.state.slots[place].name;
    let number = change.next_number();
    change.set(&name.number, number);
    change.set(&name.pid, u64::from(std::process::id()));
    change.set(&name.namespace, newcomer.namespace);
    change.set(&name.group, newcomer.group);
    change.set(&name.joined, now);
    write_text(change, &name.command, newcomer.command.as_encoded_bytes());
    write_text(change, &name.tag, newcomer.tag.as_encoded_bytes());
}

/// Clears away what the process of a slot left behind.
pub(crate) fn leave(change: &Change, place: usize) {
    let slot = &change.state.slots[place];
    if get(&slot.name.number) == 0 {
        return;
    }
    queue::cancel(change, slot, get(&change.state.header.time), |_| true);
    remember(change, place);
    let cells = at(&slot.cells_used).min(slot.cells.len());
    let counts = [
        &slot.entered,
        &slot.percent,
        &slot.active,
        &slot.pending,
        &slot.free_first,
        &slot.free_last,
        &slot.fresh,
        &slot.cells_used,
        &slot.cells_free,
    ];
    for word in counts.into_iter().chain(&slot.contexts).chain(words(&slot.name)) {
        change.set(word, 0);
    }
    for account in &slot.accounts {
        clear(change, account);
    }
    // The others were never used.
    for cell in &slot.cells[..cells] {
        change.set(&cell.number, 0);
    }
    change.set(&change.state.header.next_event, 0);
}

/// Keeps what is worth knowing of a process that used a device.
fn remember(change: &Change, place: usize) {
    let slot = &change.state.slots[place];
    let used = slot.accounts.iter().any(|account| get(&account.peak) > 0 || total(account) > 0);
    if !used {
        return;
    }
    let header = &change.state.header;
    let gone = &change.state.gone[at(&header.gone_count) % GONE];
    change.add(&header.gone_count, 1);
    for (to, from) in words(&gone.name).zip(words(&slot.name)) {
        change.set(to, get(from));
    }
    change.set(&gone.left, get(&header.time));
    for card in 0..CARDS {
        let mut sums = [0; 3];
        for (device, account) in slot.accounts.iter().enumerate() {
            let owner = at(&change.state.devices[device].card).checked_sub(1).unwrap_or(device);
            if owner == card {
                let parts = [get(&account.busy), get(&account.sm_time), get(&account.peak)];
                sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            }
        }
        for (word, sum) in gone.cards[card].iter().zip(sums) {
            change.set(word, sum);
        }
    }
}

fn words(name: &Name) -> impl Iterator<Item = &Word> {
    let numbers =
        [&name.number, &name.pid, &name.host_pid, &name.namespace, &name.group, &name.joined];
    numbers.into_iter().chain(&name.command).chain(&name.tag)
}

fn write_text(change: &Change, words: &[Word], text: &[u8]) {
    let mut bytes = text.iter().copied().chain(std::iter::repeat(0));
    for word in words {
        let mut eight = [0; 8];
        eight.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = from);
        change.set(word, u64::from_le_bytes(eight));
    }
}

/// The text that was written into words.
pub(crate) fn read_text(words: &[Word]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| get(word).to_le_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The control group of this process: its number in the kernel, the same from inside and outside
/// a container.
fn control_group() -> u64 {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    let path = format!("/sys/fs/cgroup{}", path.unwrap_or("/").trim_end());
    std::fs::metadata(path).map_or(0, |folder| folder.ino())
}
