//! Init and shutdown, and which device a handle means.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use machine::{DEVICES, DeviceId, GpuInstance, JoinError, Machine, MachineError, Presence};

use crate::abi::{Answer, Handle, Status};
use crate::card::Device;

/// What is known between init and shutdown.
pub(crate) struct Session {
    pub(crate) machine: &'static Machine,
    /// The cards this process sees; a card's place here is its index.
    pub(crate) cards: Vec<DeviceId>,
}

/// How often init was called more than shutdown.
static OPEN: Mutex<u32> = Mutex::new(0);
/// What calls find without a lock, so that a child forked during one can call too. A session is never
/// freed, for calls may be in it.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());

/// Addresses of these are the handles.
static DEVICE_HANDLES: [u64; DEVICES] = [0; DEVICES];
static GPU_INSTANCE_HANDLES: [u64; machine::CARDS * INSTANCES] = [0; machine::CARDS * INSTANCES];
static COMPUTE_INSTANCE_HANDLES: [u64; DEVICES] = [0; DEVICES];

/// GPU instances of a card have numbers below this.
const INSTANCES: usize = 16;

/// Runs a call, and turns whatever happens into a status.
pub(crate) fn guarded(act: impl FnOnce() -> Answer) -> Status {
    // A panic must not cross into C. None is expected; one would be a bug of ours.
    match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status(999),
    }
}

/// Runs a call that needs the library to be initialised.
pub(crate) fn answer(act: impl FnOnce(&Session) -> Answer) -> Status {
    guarded(|| {
        let session = current().ok_or(Status::UNINITIALIZED)?;
        session.machine.suffer();
        act(session)
    })
}

/// Answers for what newer drivers have, if the machine's is as new.
pub(crate) fn since(
    branch: u32,
    session: &Session,
    act: impl FnOnce(&Session) -> Answer,
) -> Answer {
    match session.machine.description().driver_branch() {
        Some(ours) if ours >= branch => act(session),
        _ => Err(Status::FUNCTION_NOT_FOUND),
    }
}

fn current() -> Option<&'static Session> {
    // SAFETY: null, or a box that is never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

pub(crate) fn init() -> Answer {
    let machine = Machine::find().map_err(|error| match error {
        // What a real library says of a kernel module that is not its own.
        MachineError::Version { .. } => Status::LIB_RM_VERSION_MISMATCH,
        _ => Status::DRIVER_NOT_LOADED,
    })?;
    // Not under the lock: it may hang.
    machine.suffer();
    match machine.presence() {
        Presence::Ready => {}
        Presence::NoDriver => return Err(Status::DRIVER_NOT_LOADED),
        Presence::Mismatch => return Err(Status::LIB_RM_VERSION_MISMATCH),
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    *open += 1;
    if current().is_none() {
        let session = Box::new(Session { machine, cards: machine.visible() });
        SESSION.store(Box::into_raw(session), Ordering::Release);
    }
    Ok(())
}

pub(crate) fn shutdown() -> Answer {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if *open == 0 {
        return Err(Status::UNINITIALIZED);
    }
    *open -= 1;
    if *open == 0 {
        SESSION.store(std::ptr::null_mut(), Ordering::Release);
    }
    Ok(())
}

fn handle(table: &'static [u64], place: usize) -> Handle {
    Handle(table.get(place).map_or(0, |entry| std::ptr::from_ref(entry).addr()))
}

fn place(table: &'static [u64], handle: Handle) -> Option<usize> {
    let offset = handle.0.checked_sub(table.as_ptr().addr())?;
    let place = offset / size_of::<u64>();
    (offset.is_multiple_of(size_of::<u64>()) && place < table.len()).then_some(place)
}

/// The handle of a device.
pub(crate) fn device_handle(device: DeviceId) -> Handle {
    handle(&DEVICE_HANDLES, device.place())
}

/// The handle of a GPU instance.
pub(crate) fn gpu_instance_handle(instance: &GpuInstance) -> Handle {
    let id = usize::try_from(instance.id).unwrap_or(usize::MAX).min(INSTANCES - 1);
    handle(&GPU_INSTANCE_HANDLES, instance.card * INSTANCES + id)
}

/// The handle of a compute instance.
pub(crate) fn compute_instance_handle(device: DeviceId) -> Handle {
    handle(&COMPUTE_INSTANCE_HANDLES, device.place())
}

impl Session {
    /// The device of a handle: a card or a MIG device.
    pub(crate) fn device(&self, handle: Handle) -> Answer<Device<'_>> {
        let place = place(&DEVICE_HANDLES, handle).ok_or(Status::INVALID_ARGUMENT)?;
        let id = DeviceId::new(place).ok_or(Status::INVALID_ARGUMENT)?;
        if self.machine.is_lost(id) {
            return Err(Status::GPU_IS_LOST);
        }
        let card = self.machine.card_of(id);
        let mig = if place == card {
            None
        } else {
            let instances = self.machine.compute_instances(card);
            let found = instances.into_iter().find(|instance| instance.device == id);
            Some(found.ok_or(Status::INVALID_ARGUMENT)?)
        };
        let index = self.cards.iter().position(|it| it.place() == card);
        let index = index.and_then(|index| u32::try_from(index).ok());
        let cards = &self.machine.description().cards;
        Ok(Device {
            session: self,
            id,
            index: index.ok_or(Status::INVALID_ARGUMENT)?,
            card: cards.get(card).ok_or(Status::INVALID_ARGUMENT)?,
            mig,
        })
    }

    /// The card of a handle; what asks for it cannot be asked of a MIG device.
    pub(crate) fn card(&self, handle: Handle) -> Answer<Device<'_>> {
        let device = self.device(handle)?;
        if device.mig.is_some() { Err(Status::NOT_SUPPORTED) } else { Ok(device) }
    }

    /// The GPU instance of a handle.
    pub(crate) fn gpu_instance(&self, handle: Handle) -> Answer<GpuInstance> {
        let place = place(&GPU_INSTANCE_HANDLES, handle).ok_or(Status::INVALID_ARGUMENT)?;
        let (card, id) = (place / INSTANCES, place % INSTANCES);
        let instances = self.machine.gpu_instances(card);
        let found = instances.into_iter().find(|it| usize::try_from(it.id) == Ok(id));
        found.ok_or(Status::INVALID_ARGUMENT)
    }

    /// The compute instance of a handle.
    pub(crate) fn compute_instance(&self, handle: Handle) -> Answer<machine::ComputeInstance> {
        let place = place(&COMPUTE_INSTANCE_HANDLES, handle).ok_or(Status::INVALID_ARGUMENT)?;
        let id = DeviceId::new(place).ok_or(Status::INVALID_ARGUMENT)?;
        let instances = self.machine.compute_instances(self.machine.card_of(id));
        let found = instances.into_iter().find(|instance| instance.device == id);
        found.ok_or(Status::INVALID_ARGUMENT)
    }
}

impl From<JoinError> for Status {
    fn from(_: JoinError) -> Self {
        Self::INSUFFICIENT_RESOURCES
    }
}
