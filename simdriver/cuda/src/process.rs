//! The process: what it joined, what it holds, and which context each thread works in.
//!
//! A fork inherits none of it. The page that says "initialised" is wiped in a child, so that the
//! child finds itself as before `cuInit`; what it inherited is never touched again, for a lock in
//! it may be held by a thread that is not there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{Answer, Code, Lane, Out, api};
use crate::card::{self, Card};
use crate::context::Context;
use crate::event::Event;
use crate::graph::{Exec, Graph};
use crate::memory::array::{Array, Mipmap};
use crate::memory::external::External;
use crate::memory::pages;
use crate::memory::physical::Physical;
use crate::memory::pool::Pool;
use crate::memory::space::Space;
use crate::module::{Function, Library, Link, Module};
use crate::objects::Objects;
use crate::stream::Stream;
use crate::stream::capture::Capture;

/// A process that called `cuInit`.
pub(crate) struct Process {
    /// 1, and 0 in a fork.
    mark: &'static AtomicU32,
    /// Tells processes apart for threads: a fork's stacks of contexts are not its parent's.
    number: u32,
    pub(crate) joined: card::Joined,
    pub(crate) cards: Vec<Card>,
    state: Mutex<State>,
}

/// Things by their handles, which are numbers of our own and need no hash that holds against a choice of them.
pub(crate) type Handles<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// Spreads numbers that differ in a few bits over all bits.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

/// What a process holds.
#[derive(Default)]
pub(crate) struct State {
    next: u64,
    pub(crate) contexts: Handles<Context>,
    pub(crate) primaries: Vec<Primary>,
    pub(crate) space: Space,
    pub(crate) pools: Handles<Pool>,
    pub(crate) physical: Handles<Physical>,
    pub(crate) arrays: Handles<Array>,
    pub(crate) mipmaps: Handles<Mipmap>,
    pub(crate) externals: Handles<External>,
    pub(crate) streams: Handles<Arc<Stream>>,
    pub(crate) events: Handles<Arc<Event>>,
    /// Captures that go on.
    pub(crate) captures: Vec<Arc<Capture>>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Function>,
    pub(crate) libraries: Handles<Library>,
    pub(crate) links: Handles<Link>,
    pub(crate) graphs: Handles<Graph>,
    /// The graph each node is in.
    pub(crate) node_graphs: Handles<u64>,
    pub(crate) execs: Handles<Arc<Mutex<Exec>>>,
    pub(crate) objects: Objects,
}

/// A card's primary context, made when first wanted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Primary {
    pub(crate) context: Option<u64>,
    pub(crate) holders: u64,
    pub(crate) flags: u32,
    pub(crate) default_pool: u64,
    pub(crate) current_pool: u64,
    pub(crate) graph_memory: crate::graph::memory::Held,
}

/// What a handle names; it is part of the handle, so that one cannot be taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Link,
    Pool,
    Physical,
    Array,
    Mipmap,
    External,
    Graph,
    Node,
    Exec,
    Object,
}

impl State {
    /// A handle that was never used before.
    pub(crate) fn handle(&mut self, kind: Kind) -> u64 {
        self.next += 1;
        (kind as u64) << 40 | self.next << 4
    }

    pub(crate) fn context(&self, handle: u64) -> Answer<&Context> {
        self.contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)
    }

    pub(crate) fn context_mut(&mut self, handle: u64) -> Answer<&mut Context> {
        self.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)
    }
}

static LIVE: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<u32> = Mutex::new(0);

thread_local! {
    /// The contexts pushed by this thread, and the process they belong to.
    static STACK: RefCell<(u32, Vec<u64>)> = const { RefCell::new((0, Vec::new())) };
    /// This thread's own streams by context.
    static OWN: RefCell<(u32, HashMap<u64, u64>)> = RefCell::new((0, HashMap::new()));
}

/// Locks; a thread that died while it held the lock leaves whole values behind.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process, if it called `cuInit`.
pub(crate) fn process() -> Answer<&'static Process> {
    // SAFETY: null, or a box that is never freed.
    let process = unsafe { LIVE.load(Ordering::Acquire).as_ref() };
    process.filter(|process| process.mark.load(Ordering::Acquire) == 1).ok_or(Code::NOT_INITIALIZED)
}

/// What a call in a context works on.
pub(crate) struct Call {
    pub(crate) process: &'static Process,
    pub(crate) context: u64,
    pub(crate) card: usize,
}

/// The usual checks: initialised, a context is current, its card is there and it has no error.
pub(crate) fn here() -> Answer<Call> {
    let process = process()?;
    let handle = current(process).ok_or(Code::INVALID_CONTEXT)?;
    let call = {
        let state = process.state();
        let context = state.contexts.get(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)?;
        context.failed.map_or(Ok(()), Err)?;
        Call { process, context: handle, card: context.card }
    };
    // A context whose card was seen missing is lost for good, also if the card comes back.
    process.healthy(call.card).inspect_err(|code| {
        if let Some(context) = process.state().contexts.get_mut(&handle) {
            context.failed = Some(*code);
        }
    })?;
    Ok(call)
}

impl Call {
    pub(crate) fn state(&self) -> MutexGuard<'static, State> {
        self.process.state()
    }
}

impl Process {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The card of a `CUdevice`.
    pub(crate) fn card(&self, device: i32) -> Answer<(usize, &Card)> {
        let index = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        Ok((index, self.cards.get(index).ok_or(Code::INVALID_DEVICE)?))
    }

    /// Notes that work of a context was thrown away, and says why.
    pub(crate) fn work_lost(&self, context: u64, card: usize) -> Code {
        let code = self.joined.why_lost(&self.cards[card.min(self.cards.len().saturating_sub(1))]);
        if let Some(context) = self.state().contexts.get_mut(&context) {
            context.failed = Some(code);
        }
        code
    }

    /// Whether a card can be worked with.
    pub(crate) fn healthy(&self, card: usize) -> Answer {
        self.joined.healthy(&self.cards[card.min(self.cards.len().saturating_sub(1))])
    }
}

/// The context current to this thread.
pub(crate) fn current(process: &Process) -> Option<u64> {
    with_stack(process, |stack| stack.last().copied()).flatten()
}

/// Works on this thread's stack of contexts; nothing in a thread that is about to end.
pub(crate) fn with_stack<T>(process: &Process, work: impl FnOnce(&mut Vec<u64>) -> T) -> Option<T> {
    STACK
        .try_with(|stack| {
            let mut stack = stack.try_borrow_mut().ok()?;
            if stack.0 != process.number {
                *stack = (process.number, Vec::new());
            }
            Some(work(&mut stack.1))
        })
        .ok()
        .flatten()
}

/// This thread's own stream of a context, if it has one.
pub(crate) fn own_stream(process: &Process, context: u64) -> Option<u64> {
    OWN.try_with(|own| {
        let own = own.try_borrow().ok()?;
        if own.0 == process.number { own.1.get(&context).copied() } else { None }
    })
    .ok()
    .flatten()
}

pub(crate) fn keep_own_stream(process: &Process, context: u64, stream: u64) {
    // A thread that is about to end makes a new one for each of its last calls.
    let _ = OWN.try_with(|own| {
        if let Ok(mut own) = own.try_borrow_mut() {
            if own.0 != process.number {
                *own = (process.number, HashMap::new());
            }
            own.1.insert(context, stream);
        }
    });
}

/// The version of CUDA of the machine's driver; known before `cuInit`.
pub(crate) fn cuda_version() -> Answer<u32> {
    card::cuda_version()
}

/// What an unsupported call answers: what is wrong first, then that it is not supported.
pub(crate) fn refuse() -> u32 {
    crate::abi::entry(|| {
        here()?;
        Err(Code::NOT_SUPPORTED)
    })
}

fn start() -> Answer {
    let mut number = lock(&STARTING);
    if process().is_ok() {
        return Ok(());
    }
    let (joined, cards) = card::join()?;
    if cards.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    *number += 1;
    let mark = marked_page()?;
    let mut state = State { primaries: vec![Primary::default(); cards.len()], ..State::default() };
    for (index, primary) in state.primaries.clone().iter().enumerate() {
        let pool = state.handle(Kind::Pool);
        state.pools.insert(pool, Pool::default_of(index));
        state.primaries[index] = Primary { default_pool: pool, current_pool: pool, ..*primary };
    }
    let process = Process { mark, number: *number, joined, cards, state: Mutex::new(state) };
    LIVE.store(Box::into_raw(Box::new(process)), Ordering::Release);
    Ok(())
}

/// A word that is 1 here and 0 in every fork.
fn marked_page() -> Answer<&'static AtomicU32> {
    let page = pages::map(4096, 4096, pages::Place::Anywhere)?;
    // SAFETY: the page is mapped, private, aligned and never unmapped.
    let word = unsafe {
        if libc::madvise(page as *mut _, 4096, libc::MADV_WIPEONFORK) != 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        &*(page as *const AtomicU32)
    };
    word.store(1, Ordering::Release);
    Ok(word)
}

/// Which stream a handle means to a caller of that lane.
pub(crate) fn meant(stream: u64, lane: Lane) -> u64 {
    match (stream, lane) {
        (0, Lane::Legacy) => 1,
        (0, Lane::PerThread) => 2,
        (handle, _) => handle,
    }
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        start()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.check()?;
        version.put(i32::try_from(cuda_version()?).map_err(|_| Code::UNKNOWN)?)
    }
}
