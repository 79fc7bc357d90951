//! What the devices do as time goes by.

use machine::{
    Choices, Clock, ContextId, Description, DeviceId, Machine, Memory, Process, Progress, Refused,
    Ticket, Times, Work,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A machine of four T4 with 40 multiprocessors each, whose turns are 2 ms.
fn machine(change: impl FnOnce(&mut Description)) -> (tempfile::TempDir, &'static Machine) {
    let folder = tempfile::tempdir().unwrap();
    let choices = Choices { clock: Clock::Virtual, ..Choices::default() };
    let mut description = Description::from_profile("vm-x4", &choices).unwrap();
    description.jitter_percent = 0;
    change(&mut description);
    let machine = Machine::create(folder.path(), &description).unwrap();
    (folder, machine)
}

fn card(place: usize) -> DeviceId {
    DeviceId::new(place).unwrap()
}

fn kernel(multiprocessors: u32, nanoseconds: u64) -> Work {
    Work::Kernel { multiprocessors, nanoseconds }
}

fn process(machine: &'static Machine) -> (Process, ContextId) {
    let process = machine.another_process().unwrap();
    let context = process.open_context(card(0)).unwrap();
    (process, context)
}

fn times(process: &Process, ticket: Ticket) -> (u64, u64) {
    match process.wait(ticket) {
        Progress::Done(Times { started, ended }) => (started, ended),
        other => panic!("{other:?}"),
    }
}

#[test]
fn kernels_of_one_stream_run_one_after_another() {
    let (_folder, machine) = machine(|_| ());
    let (process, context) = process(machine);
    let one = process.submit(context, 0, kernel(40, 3 * MS)).unwrap();
    let two = process.submit(context, 0, kernel(1, MS)).unwrap();
    assert_eq!(times(&process, two), (3 * MS, 4 * MS));
    assert_eq!(times(&process, one), (0, 3 * MS));
}

#[test]
fn kernels_of_one_context_share_the_multiprocessors() {
    let (_folder, machine) = machine(|_| ());
    let (process, context) = process(machine);
    let wide = process.submit(context, 1, kernel(30, 4 * MS)).unwrap();
    let narrow = process.submit(context, 2, kernel(20, 4 * MS)).unwrap();
    // 10 of 20 multiprocessors for 4 ms, then all of them for the other half of the work.
    assert_eq!(times(&process, wide), (0, 4 * MS));
    assert_eq!(times(&process, narrow), (0, 6 * MS));
}

#[test]
fn contexts_of_two_processes_take_turns() {
    let (_folder, machine) = machine(|_| ());
    let ((one, a), (two, b)) = (process(machine), process(machine));
    let first = one.submit(a, 0, kernel(1, 5 * MS)).unwrap();
    let second = two.submit(b, 0, kernel(1, 3 * MS)).unwrap();
    // Turns: 0-2 one, 2-4 two, 4-6 one, 6-7 two, 7-8 one.
    assert_eq!(times(&one, first), (0, 8 * MS));
    assert_eq!(times(&two, second), (2 * MS, 7 * MS));
    let usage = machine.usage().unwrap();
    let busy: Vec<u64> = usage.iter().map(|usage| usage.busy).collect();
    assert_eq!(busy, [5 * MS, 3 * MS]);
}

#[test]
fn under_mps_they_run_at_one_time() {
    let (_folder, machine) = machine(|description| description.mps = true);
    let ((one, a), (two, b)) = (process(machine), process(machine));
    one.set_active_percent(50);
    let first = one.submit(a, 0, kernel(40, 4 * MS)).unwrap();
    let second = two.submit(b, 0, kernel(20, 4 * MS)).unwrap();
    assert_eq!(times(&two, second), (0, 4 * MS));
    assert_eq!(times(&one, first), (0, 8 * MS));
}

#[test]
fn copies_run_beside_kernels_and_wait_for_their_engine() {
    let (_folder, machine) = machine(|description| description.cards[0].copy_engines = 2);
    let (process, context) = process(machine);
    let copy = |engine| Work::Copy { engine, nanoseconds: MS };
    let run = process.submit(context, 0, kernel(40, 5 * MS)).unwrap();
    let up = process.submit(context, 1, copy(0)).unwrap();
    let down = process.submit(context, 2, copy(1)).unwrap();
    let up_again = process.submit(context, 3, copy(2)).unwrap();
    assert_eq!(times(&process, up), (0, MS));
    assert_eq!(times(&process, down), (0, MS));
    assert_eq!(times(&process, up_again), (MS, 2 * MS));
    assert_eq!(times(&process, run), (0, 5 * MS));
}

#[test]
fn a_stream_waits_for_another_also_of_another_device_and_process() {
    let (_folder, machine) = machine(|_| ());
    let ((one, a), two) = (process(machine), machine.another_process().unwrap());
    let b = two.open_context(card(1)).unwrap();
    let first = one.submit(a, 0, kernel(40, 3 * MS)).unwrap();
    let marker = one.submit(a, 0, Work::Marker { cell: None }).unwrap();
    let marker = Ticket::from_bytes(marker.to_bytes());
    two.submit(b, 0, Work::Wait(marker)).unwrap();
    let second = two.submit(b, 0, kernel(40, MS)).unwrap();
    assert_eq!(times(&two, second), (3 * MS, 4 * MS));
    assert_eq!(times(&one, first), (0, 3 * MS));
}

#[test]
fn a_cell_keeps_its_moment_when_the_ticket_is_long_forgotten() {
    let (_folder, machine) = machine(|_| ());
    let (process, context) = process(machine);
    let cell = process.new_cell().unwrap();
    process.submit(context, 0, kernel(40, MS)).unwrap();
    let marker = process.submit(context, 0, Work::Marker { cell: Some(cell) }).unwrap();
    for _ in 0..3000 {
        process.submit(context, 0, kernel(40, 1)).unwrap();
    }
    assert_eq!(process.poll(marker), Progress::Forgotten);
    assert_eq!(process.cell_time(cell, marker), Some(MS));
}

#[test]
fn a_gate_holds_its_stream_until_it_is_opened() {
    let (_folder, machine) = machine(|_| ());
    let (process, context) = process(machine);
    let gate = process.submit(context, 0, Work::Gate).unwrap();
    let behind = process.submit(context, 0, kernel(1, MS)).unwrap();
    machine.advance(7 * MS).unwrap();
    assert_eq!(process.poll(behind), Progress::Pending);
    process.open_gate(gate);
    assert_eq!(times(&process, behind), (7 * MS, 8 * MS));
}

#[test]
fn closing_a_context_throws_its_work_away_and_gives_its_memory_back() {
    let (_folder, machine) = machine(|_| ());
    let (process, context) = process(machine);
    let work = process.submit(context, 0, kernel(1, MS)).unwrap();
    assert_eq!(machine.memory(card(0)).unwrap().used, 300 << 20);
    process.close_context(context);
    assert_eq!(process.wait(work), Progress::Cancelled);
    assert_eq!(machine.memory(card(0)).unwrap().used, 0);
}

#[test]
fn memory_is_refused_when_it_is_all_taken() {
    let (_folder, machine) = machine(|_| ());
    let (one, two) = (machine.another_process().unwrap(), machine.another_process().unwrap());
    let all = machine.memory(card(0)).unwrap().free;
    one.reserve(card(0), Memory::Allocation, all - 5).unwrap();
    let refused = two.reserve(card(0), Memory::Pool, 6);
    assert_eq!(refused, Err(Refused::OutOfMemory { asked: 6, free: 5 }));
    one.leave();
    two.reserve(card(0), Memory::Pool, all).unwrap();
}

/// Something one of three processes does.
#[derive(Debug, Clone)]
struct Act {
    process: usize,
    stream: u64,
    work: Kind,
    /// Time that goes by afterwards.
    pause: u64,
}

#[derive(Debug, Clone)]
enum Kind {
    Kernel(u32, u64),
    Copy(u32, u64),
    Marker,
    /// For the n-th ticket before.
    Wait(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let work = prop_oneof![
        4 => (1..80u32, 1..5_000_000u64).prop_map(|(width, time)| Kind::Kernel(width, time)),
        1 => (0..3u32, 1..2_000_000u64).prop_map(|(engine, time)| Kind::Copy(engine, time)),
        1 => Just(Kind::Marker),
        1 => (1..6usize).prop_map(Kind::Wait),
    ];
    let pause = prop_oneof![Just(0), 1..3_000_000u64];
    let act = (0..3usize, 0..3u64, work, pause);
    let act = act.prop_map(|(process, stream, work, pause)| Act { process, stream, work, pause });
    prop::collection::vec(act, 1..40)
}

/// When everything began and ended, if time goes by in steps of at most `step`.
fn timeline(acts: &[Act], step: u64, mps: bool) -> Vec<Progress> {
    let (_folder, machine) = machine(|description| {
        description.jitter_percent = 30;
        description.mps = mps;
    });
    let processes: Vec<_> = (0..3).map(|_| process(machine)).collect();
    let mut tickets: Vec<Ticket> = Vec::new();
    let advance = |mut time: u64| {
        while time > 0 {
            machine.advance(time.min(step)).unwrap();
            time = time.saturating_sub(step);
        }
    };
    for act in acts {
        let work = match act.work {
            Kind::Kernel(width, time) => kernel(width, time),
            Kind::Copy(engine, nanoseconds) => Work::Copy { engine, nanoseconds },
            Kind::Marker => Work::Marker { cell: None },
            Kind::Wait(back) => match tickets.len().checked_sub(back) {
                Some(place) => Work::Wait(tickets[place]),
                None => Work::Marker { cell: None },
            },
        };
        let (process, context) = &processes[act.process];
        tickets.push(process.submit(*context, act.stream, work).unwrap());
        advance(act.pause);
    }
    advance(2_000_000_000);
    let done = tickets.iter().map(|ticket| processes[0].0.poll(*ticket)).collect();
    // The sums agree: what the processes had is what the device gave.
    let total: u64 = machine.usage().unwrap().iter().map(|usage| usage.sm_time).sum();
    assert_eq!(total, machine.busy(card(0)).unwrap().1);
    for (process, _) in processes {
        process.leave();
    }
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn time_in_one_step_or_many_gives_the_same_timeline(
        acts in acts(),
        step in 100_000..40_000_000u64,
        mps: bool,
    ) {
        let whole = timeline(&acts, u64::MAX, mps);
        prop_assert!(whole.iter().all(|progress| matches!(progress, Progress::Done(_))));
        prop_assert_eq!(whole, timeline(&acts, step, mps));
    }
}
