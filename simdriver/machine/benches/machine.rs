//! What calls into the machine cost: they are the floor under every measurement on it.

use divan::Bencher;
use machine::{Choices, Clock, Description, DeviceId, Machine, Memory, Work};

fn main() {
    divan::main();
}

fn machine(clock: Clock) -> &'static Machine {
    let folder = tempfile::tempdir().expect("a folder for the machine").keep();
    let choices = Choices { clock, ..Choices::default() };
    let description = Description::from_profile("dgx-a100", &choices).expect("a known profile");
    Machine::create(&folder, &description).expect("a new machine")
}

fn card() -> DeviceId {
    DeviceId::new(0).expect("the first card")
}

#[divan::bench]
fn reserve_and_give_back(bencher: Bencher) {
    let process = machine(Clock::Real).process().expect("the first process");
    bencher.bench(|| {
        process.reserve(card(), Memory::Allocation, 4096).expect("room");
        process.give_back(card(), Memory::Allocation, 4096);
    });
}

#[divan::bench]
fn submit_behind_other_work(bencher: Bencher) {
    let process = machine(Clock::Virtual).process().expect("the first process");
    let context = process.open_context(card()).expect("room");
    // Kernels of a nanosecond: a full queue is emptied by a jump of the clock.
    let work = Work::Kernel { multiprocessors: 108, nanoseconds: 1 };
    bencher.bench(|| process.submit(context, 0, work).expect("an open context"));
}

#[divan::bench]
fn poll(bencher: Bencher) {
    let process = machine(Clock::Real).process().expect("the first process");
    let context = process.open_context(card()).expect("room");
    let work = Work::Kernel { multiprocessors: 108, nanoseconds: 1 << 50 };
    let ticket = process.submit(context, 0, work).expect("an open context");
    bencher.bench(|| process.poll(ticket));
}
