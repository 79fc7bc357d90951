//! MIG: modes, sizes, instances.

use machine::{ComputeInstance, GpuInstance, MigError, MigProfile, Setting};
use machine::{compute_slices, profiles_of};

use crate::abi::{Answer, Handle, Pointer, Status, field, struct_version};
use crate::card::Device;
use crate::session::{Session, compute_instance_handle, device_handle, gpu_instance_handle, since};
use crate::types::{
    ComputeInstanceInfo, ComputeInstanceProfileInfo, ComputeInstanceProfileInfoV2,
    DeviceAttributes, GpuInstanceInfo, GpuInstanceProfileInfo, GpuInstanceProfileInfoV2,
    GpuInstanceProfileInfoV3, Placement,
};

use super::modes::needs_root;

/// Kinds of sizes are below this.
const KINDS: u32 = 0x12;

impl From<MigError> for Status {
    fn from(error: MigError) -> Self {
        match error {
            MigError::NotSupported => Self::NOT_SUPPORTED,
            MigError::NoProfile => Self::INVALID_ARGUMENT,
            MigError::NoRoom => Self::INSUFFICIENT_RESOURCES,
            MigError::NoInstance => Self::NOT_FOUND,
            MigError::InUse => Self::IN_USE,
            MigError::Join(error) => error.into(),
        }
    }
}

/// The card of a handle, if it can be cut.
fn cuttable(session: &Session, device: Handle) -> Answer<Device<'_>> {
    let device = session.card(device)?;
    if profiles_of(&device.card.model).is_empty() {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(device)
}

/// The card of a handle, if it is in MIG mode.
fn cut(session: &Session, device: Handle) -> Answer<Device<'_>> {
    let device = cuttable(session, device)?;
    if session.machine.mig(device.place()) { Ok(device) } else { Err(Status::NOT_SUPPORTED) }
}

fn by_kind(device: &Device, kind: u32) -> Answer<&'static MigProfile> {
    if kind >= KINDS {
        return Err(Status::INVALID_ARGUMENT);
    }
    let found = profiles_of(&device.card.model).iter().find(|profile| profile.kind == kind);
    found.ok_or(Status::NOT_SUPPORTED)
}

fn by_id(device: &Device, id: u32) -> Answer<&'static MigProfile> {
    let found = profiles_of(&device.card.model).iter().find(|profile| profile.id == id);
    found.ok_or(Status::INVALID_ARGUMENT)
}

fn info(profile: &MigProfile) -> GpuInstanceProfileInfo {
    GpuInstanceProfileInfo {
        id: profile.id,
        is_p2p_supported: 0,
        slice_count: profile.slices,
        instance_count: profile.count,
        multiprocessor_count: profile.multiprocessors,
        copy_engine_count: profile.slices,
        decoder_count: profile.slices / 2,
        encoder_count: 0,
        jpeg_count: 0,
        ofa_count: 0,
        memory_size_mb: profile.memory_mib,
    }
}

/// Writes the second or third version, as the caller's struct says.
fn put_info_v(profile: &MigProfile, answer: Pointer<GpuInstanceProfileInfoV2>) -> Answer {
    let it = info(profile);
    let version = answer.get()?.version;
    let name = field(&format!("MIG {}", profile.name));
    if version == struct_version::<GpuInstanceProfileInfoV2>(2) {
        return answer.put(GpuInstanceProfileInfoV2 {
            version,
            id: it.id,
            is_p2p_supported: it.is_p2p_supported,
            slice_count: it.slice_count,
            instance_count: it.instance_count,
            multiprocessor_count: it.multiprocessor_count,
            copy_engine_count: it.copy_engine_count,
            decoder_count: it.decoder_count,
            encoder_count: it.encoder_count,
            jpeg_count: it.jpeg_count,
            ofa_count: it.ofa_count,
            memory_size_mb: it.memory_size_mb,
            name,
        });
    }
    if version != struct_version::<GpuInstanceProfileInfoV3>(3) {
        return Err(Status::ARGUMENT_VERSION_MISMATCH);
    }
    answer.cast().put(GpuInstanceProfileInfoV3 {
        version,
        id: it.id,
        slice_count: it.slice_count,
        instance_count: it.instance_count,
        multiprocessor_count: it.multiprocessor_count,
        copy_engine_count: it.copy_engine_count,
        decoder_count: it.decoder_count,
        encoder_count: it.encoder_count,
        jpeg_count: it.jpeg_count,
        ofa_count: it.ofa_count,
        memory_size_mb: it.memory_size_mb,
        name,
        capabilities: 0,
    })
}

fn placements(
    session: &Session,
    device: Handle,
    id: u32,
    list: Pointer<Placement>,
    count: Pointer<u32>,
) -> Answer {
    let device = cuttable(session, device)?;
    let profile = by_id(&device, id)?;
    let all = profile.starts.iter().map(|start| Placement { start: *start, size: profile.size });
    let all: Vec<Placement> = all.collect();
    count.put(u32::try_from(all.len()).unwrap_or(0))?;
    // The room for all of them is the caller's duty; it may ask for the count first.
    if list.is_null() { Ok(()) } else { list.put_all(&all, all.len()) }
}

fn compute_info(of: &GpuInstance, kind: u32) -> Answer<ComputeInstanceProfileInfo> {
    let slices = compute_slices(kind).ok_or(Status::INVALID_ARGUMENT)?;
    if slices > of.profile.slices || kind == 7 {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(ComputeInstanceProfileInfo {
        id: kind,
        slice_count: slices,
        instance_count: of.profile.slices / slices,
        multiprocessor_count: of.profile.multiprocessors * slices / of.profile.slices,
        shared_copy_engine_count: of.profile.slices,
        shared_decoder_count: of.profile.slices / 2,
        shared_encoder_count: 0,
        shared_jpeg_count: 0,
        shared_ofa_count: 0,
    })
}

fn instances_of(session: &Session, of: &GpuInstance) -> Vec<ComputeInstance> {
    let mut all = session.machine.compute_instances(of.card);
    all.retain(|instance| instance.of.id == of.id);
    all
}

fn put_handles(handles: &[Handle], list: Pointer<Handle>, count: Pointer<u32>) -> Answer {
    count.put(u32::try_from(handles.len()).unwrap_or(0))?;
    // The interface does not say how much room there is: as much as the size's count.
    list.put_all(handles, handles.len())
}

fn attributes(session: &Session, device: Handle, answer: Pointer<DeviceAttributes>) -> Answer {
    let device = session.device(device)?;
    let Some(mig) = &device.mig else { return Err(Status::NOT_SUPPORTED) };
    answer.put(DeviceAttributes {
        multiprocessor_count: session.machine.multiprocessors(device.id),
        shared_copy_engine_count: mig.of.profile.slices,
        shared_decoder_count: mig.of.profile.slices / 2,
        shared_encoder_count: 0,
        shared_jpeg_count: 0,
        shared_ofa_count: 0,
        gpu_instance_slice_count: mig.of.profile.slices,
        compute_instance_slice_count: mig.slices,
        memory_size_mb: mig.of.profile.memory_mib,
    })
}

fn compute_instance_info(
    session: &Session,
    handle: Handle,
    answer: Pointer<ComputeInstanceInfo>,
) -> Answer {
    let instance = session.compute_instance(handle)?;
    answer.put(ComputeInstanceInfo {
        device: card_handle(instance.of.card)?,
        gpu_instance: gpu_instance_handle(&instance.of),
        id: instance.id,
        profile_id: instance.kind,
        placement: Placement { start: instance.start, size: instance.slices },
    })
}

fn card_handle(card: usize) -> Answer<Handle> {
    machine::DeviceId::new(card).map(device_handle).ok_or(Status::NOT_FOUND)
}

calls! {
    nvmlDeviceGetMigMode(device: Handle, now: Pointer<u32>, pending: Pointer<u32>) |session| {
        let device = cuttable(session, device)?;
        now.put(device.setting(Setting::Mig))?;
        pending.put(device.setting(Setting::PendingMig))
    }

    nvmlDeviceSetMigMode(device: Handle, mode: u32, outcome: Pointer<Status>) |session| {
        let device = cuttable(session, device)?;
        if mode > 1 {
            return Err(Status::INVALID_ARGUMENT);
        }
        needs_root()?;
        let done = session.machine.set_mig(device.place(), mode == 1).map_err(Status::from);
        outcome.put(done.err().unwrap_or(Status::SUCCESS))
    }

    nvmlDeviceIsMigDeviceHandle(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(u32::from(session.device(device)?.mig.is_some()))
    }

    nvmlDeviceGetMaxMigDeviceCount(device: Handle, answer: Pointer<u32>) |session| {
        let device = session.card(device)?;
        answer.put(if profiles_of(&device.card.model).is_empty() { 0 } else { 7 })
    }

    nvmlDeviceGetMigDeviceHandleByIndex(
        device: Handle,
        index: u32,
        answer: Pointer<Handle>,
    ) |session| {
        let device = cut(session, device)?;
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let slices = session.machine.compute_instances(device.place());
        let slice = slices.get(place).ok_or(Status::NOT_FOUND)?;
        answer.put(device_handle(slice.device))
    }

    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        device: Handle,
        answer: Pointer<Handle>,
    ) |session| {
        let device = session.device(device)?;
        if device.mig.is_none() {
            return Err(Status::INVALID_ARGUMENT);
        }
        answer.put(card_handle(device.place())?)
    }

    nvmlDeviceGetGpuInstanceId(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(session.device(device)?.mig.ok_or(Status::NOT_SUPPORTED)?.of.id)
    }

    nvmlDeviceGetComputeInstanceId(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(session.device(device)?.mig.ok_or(Status::NOT_SUPPORTED)?.id)
    }

    nvmlDeviceGetAttributes(device: Handle, answer: Pointer<DeviceAttributes>) |session| {
        attributes(session, device, answer)
    }

    nvmlDeviceGetAttributes_v2(device: Handle, answer: Pointer<DeviceAttributes>) |session| {
        attributes(session, device, answer)
    }

    nvmlDeviceGetGpuInstanceProfileInfo(
        device: Handle,
        kind: u32,
        answer: Pointer<GpuInstanceProfileInfo>,
    ) |session| {
        answer.put(info(by_kind(&cuttable(session, device)?, kind)?))
    }

    nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Handle,
        kind: u32,
        answer: Pointer<GpuInstanceProfileInfoV2>,
    ) |session| {
        put_info_v(by_kind(&cuttable(session, device)?, kind)?, answer)
    }

    nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: Handle,
        id: u32,
        answer: Pointer<GpuInstanceProfileInfoV2>,
    ) |session| {
        since(580, session, |session| put_info_v(by_id(&cuttable(session, device)?, id)?, answer))
    }

    nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Handle,
        id: u32,
        list: Pointer<Placement>,
        count: Pointer<u32>,
    ) |session| {
        placements(session, device, id, list, count)
    }

    nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle,
        id: u32,
        list: Pointer<Placement>,
        count: Pointer<u32>,
    ) |session| {
        placements(session, device, id, list, count)
    }

    nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: Handle,
        id: u32,
        answer: Pointer<u32>,
    ) |session| {
        let device = cut(session, device)?;
        let room = session.machine.room_for(device.place(), by_id(&device, id)?);
        answer.put(u32::try_from(room.len()).unwrap_or(0))
    }

    nvmlDeviceCreateGpuInstance(device: Handle, id: u32, answer: Pointer<Handle>) |session| {
        let device = cut(session, device)?;
        needs_root()?;
        let made = session.machine.create_gpu_instance(device.place(), id, None)?;
        answer.put(gpu_instance_handle(&made))
    }

    nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle,
        id: u32,
        placement: Pointer<Placement>,
        answer: Pointer<Handle>,
    ) |session| {
        let device = cut(session, device)?;
        needs_root()?;
        let start = Some(placement.get()?.start);
        let made = session.machine.create_gpu_instance(device.place(), id, start)?;
        answer.put(gpu_instance_handle(&made))
    }

    nvmlGpuInstanceDestroy(instance: Handle) |session| {
        let instance = session.gpu_instance(instance)?;
        needs_root()?;
        Ok(session.machine.destroy_gpu_instance(&instance)?)
    }

    nvmlDeviceGetGpuInstances(
        device: Handle,
        id: u32,
        list: Pointer<Handle>,
        count: Pointer<u32>,
    ) |session| {
        let device = cut(session, device)?;
        by_id(&device, id)?;
        let all = session.machine.gpu_instances(device.place());
        let these = all.iter().filter(|instance| instance.profile.id == id);
        put_handles(&these.map(gpu_instance_handle).collect::<Vec<_>>(), list, count)
    }

    nvmlDeviceGetGpuInstanceById(device: Handle, id: u32, answer: Pointer<Handle>) |session| {
        let device = cut(session, device)?;
        let all = session.machine.gpu_instances(device.place());
        let found = all.iter().find(|instance| instance.id == id).ok_or(Status::NOT_FOUND)?;
        answer.put(gpu_instance_handle(found))
    }

    nvmlGpuInstanceGetInfo(instance: Handle, answer: Pointer<GpuInstanceInfo>) |session| {
        let instance = session.gpu_instance(instance)?;
        answer.put(GpuInstanceInfo {
            device: card_handle(instance.card)?,
            id: instance.id,
            profile_id: instance.profile.id,
            placement: Placement { start: instance.start, size: instance.profile.size },
        })
    }

    nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Handle,
        kind: u32,
        _engine: u32,
        answer: Pointer<ComputeInstanceProfileInfo>,
    ) |session| {
        answer.put(compute_info(&session.gpu_instance(instance)?, kind)?)
    }

    nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: Handle,
        kind: u32,
        _engine: u32,
        answer: Pointer<ComputeInstanceProfileInfoV2>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        let info = compute_info(&instance, kind)?;
        let version = answer.get()?.version;
        if version != struct_version::<ComputeInstanceProfileInfoV2>(2) {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        let name = if info.slice_count == instance.profile.slices {
            format!("MIG {}", instance.profile.name)
        } else {
            format!("MIG {}c.{}", info.slice_count, instance.profile.name)
        };
        answer.put(ComputeInstanceProfileInfoV2 { version, info, name: field(&name) })
    }

    nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: Handle,
        kind: u32,
        answer: Pointer<u32>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        let info = compute_info(&instance, kind)?;
        let taken: u32 = instances_of(session, &instance).iter().map(|it| it.slices).sum();
        answer.put((instance.profile.slices - taken) / info.slice_count)
    }

    nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Handle,
        kind: u32,
        list: Pointer<Placement>,
        count: Pointer<u32>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        let size = compute_info(&instance, kind)?.slice_count;
        let starts = (0..instance.profile.slices / size).map(|place| place * size);
        let all: Vec<Placement> = starts.map(|start| Placement { start, size }).collect();
        count.put(u32::try_from(all.len()).unwrap_or(0))?;
        if list.is_null() { Ok(()) } else { list.put_all(&all, all.len()) }
    }

    nvmlGpuInstanceCreateComputeInstance(
        instance: Handle,
        kind: u32,
        answer: Pointer<Handle>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        needs_root()?;
        let made = session.machine.create_compute_instance(&instance, kind)?;
        answer.put(compute_instance_handle(made.device))
    }

    nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: Handle,
        kind: u32,
        _placement: Pointer<Placement>,
        answer: Pointer<Handle>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        needs_root()?;
        // Compute slices of one GPU instance are alike, so their place makes no difference.
        let made = session.machine.create_compute_instance(&instance, kind)?;
        answer.put(compute_instance_handle(made.device))
    }

    nvmlComputeInstanceDestroy(instance: Handle) |session| {
        let instance = session.compute_instance(instance)?;
        needs_root()?;
        Ok(session.machine.destroy_compute_instance(&instance)?)
    }

    nvmlGpuInstanceGetComputeInstances(
        instance: Handle,
        kind: u32,
        list: Pointer<Handle>,
        count: Pointer<u32>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        let all = instances_of(session, &instance);
        let these = all.iter().filter(|it| it.kind == kind);
        let handles: Vec<Handle> = these.map(|it| compute_instance_handle(it.device)).collect();
        put_handles(&handles, list, count)
    }

    nvmlGpuInstanceGetComputeInstanceById(
        instance: Handle,
        id: u32,
        answer: Pointer<Handle>,
    ) |session| {
        let instance = session.gpu_instance(instance)?;
        let all = instances_of(session, &instance);
        let found = all.iter().find(|it| it.id == id).ok_or(Status::NOT_FOUND)?;
        answer.put(compute_instance_handle(found.device))
    }

    nvmlComputeInstanceGetInfo(
        instance: Handle,
        answer: Pointer<ComputeInstanceInfo>,
    ) |session| {
        compute_instance_info(session, instance, answer)
    }

    nvmlComputeInstanceGetInfo_v2(
        instance: Handle,
        answer: Pointer<ComputeInstanceInfo>,
    ) |session| {
        compute_instance_info(session, instance, answer)
    }
}
