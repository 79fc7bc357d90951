//! Memory of other APIs, by file descriptor.

use std::os::fd::{FromRawFd, OwnedFd};

use super::pages;
use super::space::{Space, What};
use super::{array, ipc};
use crate::abi::{Answer, Code, In, Out, api};
use crate::process::{Kind, Process, here, process};
use crate::shapes::{ExternalLevels, ExternalRange, ExternalShape};

const FILE_DESCRIPTOR: u32 = 1;

/// Imported memory, and what of it is mapped.
#[derive(Debug)]
pub(crate) struct External {
    file: OwnedFd,
    size: u64,
    mapped: Vec<(u64, u64)>,
}

/// Maps a part of imported memory.
fn map(handle: u64, offset: u64, size: u64) -> Answer<u64> {
    let call = here()?;
    let mut state = call.state();
    let external = state.externals.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    let end = offset.checked_add(size).ok_or(Code::INVALID_VALUE)?;
    if size == 0 || !offset.is_multiple_of(4096) || end > external.size {
        return Err(Code::INVALID_VALUE);
    }
    let length = pages::round_up(size, 4096)?;
    let base = pages::reserve(length, 4096)?;
    pages::map_file(base, length, &external.file, offset)
        .inspect_err(|_| pages::unmap(base, length))?;
    external.mapped.push((base, length));
    let range = Space::new_range(base, size, What::Imported, call.card, call.context);
    state.space.add(range);
    Ok(base)
}

/// Takes the mapping of a buffer away; memory of another process is closed in another way.
pub(crate) fn free(process: &'static Process, address: u64) -> Answer {
    let contexts: Vec<u64> = process.state().contexts.keys().copied().collect();
    contexts.into_iter().try_for_each(|context| crate::context::drain(process, context))?;
    let mut state = process.state();
    let mut mapped = state.externals.values_mut().map(|external| &mut external.mapped);
    let found = mapped.find_map(|mapped| {
        let place = mapped.iter().position(|(base, _)| *base == address)?;
        Some(mapped.swap_remove(place))
    });
    let (base, length) = found.ok_or(Code::INVALID_VALUE)?;
    state.space.remove(base)?;
    pages::unmap(base, length);
    Ok(())
}

api! {
    fn cuImportExternalMemory(memory: Out<u64>, shape: In<ExternalShape>) {
        memory.check()?;
        let call = here()?;
        let shape = shape.get()?;
        if shape.kind != FILE_DESCRIPTOR { return Err(Code::NOT_SUPPORTED); }
        let descriptor = i32::try_from(shape.handle[0] & 0xffff_ffff).map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: by the API's contract the descriptor is the driver's from now on; one that is not
        // open is refused below, when its size is asked for.
        let file = unsafe {
            if libc::fcntl(descriptor, libc::F_GETFD) < 0 { return Err(Code::INVALID_VALUE); }
            OwnedFd::from_raw_fd(descriptor)
        };
        if shape.size == 0 || ipc::length(&file)? < shape.size { return Err(Code::INVALID_VALUE); }
        let mut state = call.state();
        let handle = state.handle(Kind::External);
        state.externals.insert(handle, External { file, size: shape.size, mapped: Vec::new() });
        memory.put(handle)
    }

    fn cuExternalMemoryGetMappedBuffer(address: Out<u64>, memory: u64, range: In<ExternalRange>) {
        address.check()?;
        let range = range.get()?;
        address.put(map(memory, range.offset, range.size)?)
    }

    fn cuExternalMemoryGetMappedMipmappedArray(mipmap: Out<u64>, memory: u64, shape: In<ExternalLevels>) {
        mipmap.check()?;
        let shape = shape.get()?;
        let size = {
            let process = process()?;
            let state = process.state();
            state.externals.get(&memory).ok_or(Code::INVALID_HANDLE)?.size
        };
        let base = map(memory, shape.offset, size.saturating_sub(shape.offset))?;
        mipmap.put(array::create_mipmap(&shape.array, shape.levels, Some(base))?)
    }

    fn cuDestroyExternalMemory(memory: u64) {
        let call = here()?;
        crate::context::drain(call.process, call.context)?;
        let mut state = call.state();
        let external = state.externals.remove(&memory).ok_or(Code::INVALID_HANDLE)?;
        for (base, length) in external.mapped {
            let _ = state.space.remove(base);
            pages::unmap(base, length);
        }
        Ok(())
    }
}
