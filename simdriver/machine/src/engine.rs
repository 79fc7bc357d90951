//! What the devices do as time goes by.
//!
//! Nobody runs it: who wants to know something lets it catch up with the clock. It goes from
//! event to event, all in whole numbers, and what happens between two events is linear. So the
//! same timeline comes out however often and by whomever it is asked.
//!
//! - Kernels of one context share the multiprocessors; who was first takes all it can use.
//! - Contexts take turns, each for a quantum with jitter, or until it has nothing to run.
//! - Under MPS all contexts of a device run at one time.
//! - Copies run beside, one at a time on each copy engine.

use crate::journal::Change;
use crate::queue::{Ending, Progress, finish_first, item_at, kind, lines, progress, target};
use crate::state::{
    BUCKET, CARD_BUCKETS, DEVICES, Item, PROCESS_BUCKETS, Slot, State, Word, at, get, wide,
};

/// What the engine must know of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// How long a turn is, in nanoseconds.
    pub(crate) quantum: u64,
    /// By how many percent it may be shorter or longer.
    pub(crate) jitter: u64,
    pub(crate) seed: u64,
    /// All contexts run at one time.
    pub(crate) together: bool,
    /// Multiprocessors and copy engines of each card.
    pub(crate) cards: Vec<(u64, u64)>,
}

/// Whose turn it is under MPS.
const EVERYBODY: u64 = u64::MAX - 1;

/// The first item of a line, if it is something to run.
#[derive(Clone, Copy)]
struct Ready {
    device: usize,
    group: u64,
    slot: usize,
    item: usize,
    order: u64,
    copy_engine: Option<u64>,
    /// Multiprocessors it has now; 1 for a copy that runs.
    share: u64,
}

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// To the time that is asked for: what is half-done then is counted.
    TheTime,
    /// To the last event up to that time.
    TheLastEvent,
}

/// Simulates up to device time `to`, so that all counts are right at that time.
pub(crate) fn catch_up(change: &Change, rules: &Rules, to: u64) {
    simulate(change, rules, to, Until::TheTime);
}

/// Simulates what happens up to `to`. Counts of busy time lag behind, to the last event at most.
pub(crate) fn keep_up(change: &Change, rules: &Rules, to: u64) {
    let next = get(&change.state.header.next_event);
    if next == 0 || next <= to {
        simulate(change, rules, to, Until::TheLastEvent);
    }
}

fn simulate(change: &Change, rules: &Rules, to: u64, until: Until) {
    let header = &change.state.header;
    let mut ready = Vec::new();
    loop {
        let now = get(&header.time);
        settle(change, now);
        gather(change.state, rules, &mut ready);
        let turns_end = plan(change, rules, now, &mut ready);
        let next = next_event(change.state, now, &ready).min(turns_end);
        change.set(&header.next_event, next);
        let stop = next.min(to);
        if stop <= now || (next > to && until == Until::TheLastEvent) {
            return change.commit();
        }
        pass(change, &ready, now, stop);
        change.set(&header.time, stop);
        change.commit();
    }
}

/// Lets everything happen that takes no time.
fn settle(change: &Change, now: u64) {
    loop {
        let mut moved = false;
        for slot in in_use(change.state) {
            if get(&slot.active) == 0 {
                continue;
            }
            for stream in lines(slot) {
                while let Some((_, item)) = item_at(slot, get(&stream.first)) {
                    if !is_over(change.state, item) {
                        break;
                    }
                    finish_first(change, slot, stream, now, Ending::Finished);
                    // Each is a step of its own: many may be through at one time.
                    change.commit();
                    moved = true;
                }
            }
        }
        if !moved {
            return;
        }
    }
}

/// Whether the first item of a line is done.
fn is_over(state: &State, item: &Item) -> bool {
    match get(&item.kind) {
        kind::MARKER => true,
        kind::GATE => get(&item.width) == 1,
        kind::WAIT => progress(state, target(item)) != Progress::Pending,
        _ => get(&item.left) == 0,
    }
}

fn in_use(state: &State) -> &[Slot] {
    &state.slots[..at(&state.header.slots_used).min(state.slots.len())]
}

/// Collects what could run, by device and in the order in which it became ready.
fn gather(state: &State, rules: &Rules, ready: &mut Vec<Ready>) {
    ready.clear();
    for (place, slot) in in_use(state).iter().enumerate() {
        for stream in lines(slot) {
            let Some((item_place, item)) = item_at(slot, get(&stream.first)) else { continue };
            let copy_engine = match get(&item.kind) {
                kind::KERNEL => None,
                kind::COPY => Some(get(&item.width)),
                _ => continue,
            };
            let context = at(&item.context);
            let Some(device) = slot.contexts.get(context).and_then(|it| at(it).checked_sub(1))
            else {
                continue;
            };
            let group = if rules.together { EVERYBODY } else { wide(place) << 16 | wide(context) };
            let order = get(&item.ready);
            ready.push(Ready {
                device,
                group,
                slot: place,
                item: item_place,
                order,
                copy_engine,
                share: 0,
            });
        }
    }
    ready.sort_unstable_by_key(|one| (one.device, one.order));
}

/// Gives every device to whom it belongs now, and says when the next turn ends.
fn plan(change: &Change, rules: &Rules, now: u64, ready: &mut [Ready]) -> u64 {
    let mut turns_end = u64::MAX;
    let mut rest = ready;
    let mut idle_from = 0;
    while let Some(first) = rest.first() {
        let device = first.device;
        let count = rest.partition_point(|one| one.device == device);
        let (mine, others) = rest.split_at_mut(count);
        rest = others;
        idle(change, idle_from..device);
        idle_from = device + 1;
        let Some(state) = change.state.devices.get(device) else { continue };
        start_copies(change.state, copy_engines(rules, state, device), mine);
        if mine.iter().all(|one| one.copy_engine.is_some()) {
            idle(change, device..device + 1);
            continue;
        }
        let several = take_turns(change, rules, device, now, mine);
        if several {
            turns_end = turns_end.min(get(&state.turn_ends));
        }
        share_out(change, rules, device, mine);
    }
    idle(change, idle_from..DEVICES);
    turns_end
}

/// A device without kernels forgets its turn, so that the next one is a whole one.
fn idle(change: &Change, devices: std::ops::Range<usize>) {
    // Beyond the last that ever had a turn there is none to forget.
    let used = at(&change.state.header.turning).min(devices.end);
    for device in change.state.devices.get(devices.start..used).unwrap_or_default() {
        change.set(&device.turn_ends, 0);
    }
}

/// The first ready copy of each engine runs, but one that runs already keeps it.
fn start_copies(state: &State, engines: u64, ready: &mut [Ready]) {
    let running = |one: &Ready| get(&state.slots[one.slot].items[one.item].running) == 1;
    for engine in 0..engines {
        let on_it = |one: &Ready| one.copy_engine.is_some_and(|copy| copy % engines == engine);
        let chosen = ready.iter().position(|one| on_it(one) && running(one));
        let chosen = chosen.or_else(|| ready.iter().position(on_it));
        if let Some(chosen) = chosen {
            ready[chosen].share = 1;
        }
    }
}

/// Sees to it that the turn is somebody's who has a kernel. Says whether others have one too.
fn take_turns(change: &Change, rules: &Rules, device: usize, now: u64, ready: &[Ready]) -> bool {
    let state = &change.state.devices[device];
    let groups = || ready.iter().filter(|one| one.copy_engine.is_none()).map(|one| one.group);
    let turn = get(&state.turn).checked_sub(1);
    let has_it = turn.is_some_and(|turn| groups().any(|group| group == turn));
    let others = groups().any(|group| Some(group) != turn);
    let ends = get(&state.turn_ends);
    let over = ends == 0 || !has_it || (others && now >= ends);
    if over {
        let after = groups().filter(|group| turn.is_none_or(|turn| *group > turn)).min();
        let Some(next) = after.or_else(|| groups().min()) else { return false };
        let turns = get(&state.turns);
        let header = &change.state.header;
        change.set(&header.turning, get(&header.turning).max(wide(device + 1)));
        change.set(&state.turn, next + 1);
        change.set(&state.turns, turns + 1);
        change.set(&state.turn_ends, now + turn_length(rules, device, turns));
        return groups().any(|group| group != next);
    }
    others
}

/// How long a turn is. It depends on its number alone, not on who asked when.
fn turn_length(rules: &Rules, device: usize, number: u64) -> u64 {
    let span = 2 * rules.jitter + 1;
    let random = mixed(rules.seed ^ mixed(wide(device) << 48 ^ number)) % span;
    let percent = (100 + random).saturating_sub(rules.jitter);
    (rules.quantum.saturating_mul(percent) / 100).max(1)
}

/// A number that looks random (splitmix64's finaliser).
pub(crate) fn mixed(mut number: u64) -> u64 {
    number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Gives the multiprocessors of a device to the kernels of whose turn it is, first come first
/// served.
fn share_out(change: &Change, rules: &Rules, device: usize, ready: &mut [Ready]) {
    let state = change.state;
    let turn = get(&state.devices[device].turn).wrapping_sub(1);
    let all = multiprocessors(rules, &state.devices[device], device);
    let mut left = all;
    for place in 0..ready.len() {
        let one = ready[place];
        if one.copy_engine.is_some() || one.group != turn {
            continue;
        }
        let percent = match get(&state.slots[one.slot].percent) {
            percent @ 1..=99 if rules.together => percent,
            _ => 100,
        };
        let same = ready[..place].iter().filter(|it| it.slot == one.slot);
        let has: u64 = same.filter(|it| it.copy_engine.is_none()).map(|it| it.share).sum();
        let most = (all * percent).div_ceil(100).saturating_sub(has);
        let share = get(&state.slots[one.slot].items[one.item].width).min(left).min(most);
        ready[place].share = share;
        left -= share;
    }
}

pub(crate) fn multiprocessors(rules: &Rules, state: &crate::state::Device, device: usize) -> u64 {
    match get(&state.multiprocessors) {
        0 => rules.cards.get(device).map_or(1, |(count, _)| *count),
        count => count,
    }
}

fn copy_engines(rules: &Rules, state: &crate::state::Device, device: usize) -> u64 {
    let card = at(&state.card).checked_sub(1).unwrap_or(device);
    rules.cards.get(card).map_or(1, |(_, engines)| (*engines).max(1))
}

/// When the first of the running items ends.
fn next_event(state: &State, now: u64, ready: &[Ready]) -> u64 {
    let ends = ready.iter().filter(|one| one.share > 0).map(|one| {
        let left = get(&state.slots[one.slot].items[one.item].left);
        now.saturating_add(left.div_ceil(one.share))
    });
    ends.min().unwrap_or(u64::MAX)
}

/// Lets the running items run from `from` to `until`. Those that are through leave when the rest
/// is settled.
fn pass(change: &Change, ready: &[Ready], from: u64, until: u64) {
    let time = until - from;
    for one in ready.iter().filter(|one| one.share > 0) {
        let slot = &change.state.slots[one.slot];
        let item = &slot.items[one.item];
        if get(&item.running) == 0 {
            change.set(&item.started, from);
            change.set(&item.running, 1);
        }
        change.subtract(&item.left, one.share.saturating_mul(time));
    }
    count_busy(change, ready, from, until);
}

/// Adds to the busy time of devices and processes.
fn count_busy(change: &Change, ready: &[Ready], from: u64, until: u64) {
    let time = until - from;
    let runs = |one: &Ready| one.copy_engine.is_none() && one.share > 0;
    for (place, one) in ready.iter().enumerate().filter(|(_, one)| runs(one)) {
        let here = |other: &Ready| runs(other) && other.device == one.device;
        let mine = |other: &Ready| here(other) && other.slot == one.slot;
        let before = &ready[..place];
        // Kernels that run together are counted together, with the first of them.
        if !before.iter().any(here) {
            let width: u64 = ready.iter().filter(|it| here(it)).map(|it| it.share).sum();
            let state = &change.state.devices[one.device];
            change.add(&state.busy, time);
            change.add(&state.sm_time, width.saturating_mul(time));
            fill_buckets::<CARD_BUCKETS>(change, &state.buckets, from, until, width);
        }
        if !before.iter().any(mine) {
            let width: u64 = ready.iter().filter(|it| mine(it)).map(|it| it.share).sum();
            let account = &change.state.slots[one.slot].accounts[one.device];
            change.add(&account.busy, time);
            change.add(&account.sm_time, width.saturating_mul(time));
            fill_buckets::<PROCESS_BUCKETS>(change, &account.buckets, from, until, width);
        }
    }
    for one in ready.iter().filter(|one| one.copy_engine.is_some() && one.share > 0) {
        change.add(&change.state.devices[one.device].copied, time);
    }
}

/// Spreads a stretch of time over the buckets it touches; only the newest are kept.
fn fill_buckets<const N: usize>(
    change: &Change,
    buckets: &[[Word; 3]; N],
    from: u64,
    until: u64,
    width: u64,
) {
    let oldest = (until / BUCKET).saturating_sub(wide(N) - 1);
    let mut from = from.max(oldest * BUCKET);
    while from < until {
        let bucket = from / BUCKET;
        let end = until.min((bucket + 1) * BUCKET);
        let [number, busy, sm_time] = &buckets[usize::try_from(bucket).unwrap_or(0) % N];
        if get(number) != bucket + 1 {
            change.set(number, bucket + 1);
            change.set(busy, 0);
            change.set(sm_time, 0);
        }
        change.add(busy, end - from);
        change.add(sm_time, width * (end - from));
        from = end;
    }
}

/// The earliest device time at which the work of a ticket can be finished, `None` if that is up
/// to somebody else. Never later than the true one, whatever joins or leaves.
pub(crate) fn earliest(state: &State, ticket: crate::Ticket) -> Option<u64> {
    earliest_within(state, ticket, 4)
}

fn earliest_within(state: &State, ticket: crate::Ticket, depth: u32) -> Option<u64> {
    let now = get(&state.header.time);
    if progress(state, ticket) != Progress::Pending {
        return Some(now);
    }
    let slot = &state.slots[usize::from(ticket.slot)];
    let stream = &slot.streams[at(&slot.items[usize::from(ticket.item)].stream)];
    let mut time = now;
    let mut link = get(&stream.first);
    while let Some((_, item)) = item_at(slot, link) {
        match get(&item.kind) {
            kind::GATE if get(&item.width) == 0 => return None,
            kind::WAIT if depth > 0 => {
                time = time.max(earliest_within(state, target(item), depth - 1)?);
            }
            kind::KERNEL => time += get(&item.left).div_ceil(get(&item.width).max(1)),
            _ => time += get(&item.left),
        }
        if get(&item.number) == ticket.number {
            break;
        }
        link = get(&item.next);
    }
    Some(time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::{Line, Work, append, line};

    /// What a process submits and when, and whether somebody asks for counts at that time.
    #[derive(Debug, Clone)]
    struct Act {
        pause: u64,
        slot: usize,
        stream: u64,
        length: u64,
        counts: bool,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = (0..2_000_000u64, 0..2usize, 0..3u64, 1..900_000u64, any::<bool>()).prop_map(
            |(pause, slot, stream, length, counts)| Act { pause, slot, stream, length, counts },
        );
        prop::collection::vec(act, 1..60)
    }

    /// When each piece of work ended, and how long the card and the processes were busy.
    fn run(acts: &[Act], lagging: bool) -> (Vec<Progress>, Vec<u64>) {
        // SAFETY: zeroes are a valid state.
        let state = unsafe { Box::<State>::new_zeroed().assume_init() };
        let change = Change::begin(&state, &|| ());
        change.set(&state.header.slots_used, 2);
        for slot in &state.slots[..2] {
            change.set(&slot.contexts[0], 1);
        }
        let rules =
            Rules { quantum: 300_000, jitter: 20, seed: 3, together: false, cards: vec![(40, 2)] };
        let mut now = 0;
        let mut tickets = Vec::new();
        for act in acts {
            now += act.pause;
            // As `Process::try_submit` does it: only what joins an idle stream must be in time.
            let idle = || matches!(line(&state.slots[act.slot], 0, act.stream), Line::Idle(_));
            if lagging && !idle() {
                keep_up(&change, &rules, now);
            }
            if !lagging || idle() || act.counts {
                catch_up(&change, &rules, now);
            }
            let work = Work::Kernel { multiprocessors: 30, nanoseconds: act.length };
            tickets.push(append(&change, act.slot, 0, act.stream, work, now).unwrap());
        }
        catch_up(&change, &rules, now + 100_000_000);
        let ended = tickets.into_iter().map(|ticket| progress(&state, ticket)).collect();
        let mut busy = vec![get(&state.devices[0].busy), get(&state.devices[0].sm_time)];
        busy.extend(state.slots[..2].iter().map(|slot| get(&slot.accounts[0].busy)));
        (ended, busy)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn who_lets_counts_lag_behind_changes_no_timeline(acts in acts()) {
            prop_assert_eq!(run(&acts, true), run(&acts, false));
        }
    }
}
