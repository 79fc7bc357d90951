//! The system as a whole: versions, counts, names of processes.

use std::ffi::c_char;

use crate::abi::{Handle, Pointer, Status, field, struct_version};
use crate::session::since;
use crate::types::DriverBranch;

calls! {
    nvmlSystemGetDriverVersion(version: Pointer<c_char>, length: u32) |session| {
        version.put_text(&session.machine.description().driver, length)
    }

    nvmlSystemGetNVMLVersion(version: Pointer<c_char>, length: u32) |session| {
        let description = session.machine.description();
        version.put_text(&format!("{}.{}", description.cuda.major, description.driver), length)
    }

    nvmlSystemGetCudaDriverVersion(version: Pointer<i32>) |session| {
        version.put(session.machine.description().cuda.number())
    }

    nvmlSystemGetCudaDriverVersion_v2(version: Pointer<i32>) |session| {
        version.put(session.machine.description().cuda.number())
    }

    nvmlSystemGetDriverBranch(info: Pointer<DriverBranch>, _length: u32) |session| {
        since(560, session, |session| {
            let version = info.get()?.version;
            if version != struct_version::<DriverBranch>(1) {
                return Err(Status::ARGUMENT_VERSION_MISMATCH);
            }
            let branch = session.machine.description().driver_branch().unwrap_or_default();
            info.put(DriverBranch { version, branch: field(&format!("r{branch}_00")) })
        })
    }

    nvmlSystemGetProcessName(pid: u32, name: Pointer<c_char>, length: u32) |_session| {
        if length == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Status::NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut text = String::from_utf8_lossy(first).into_owned();
        if text.is_empty() {
            let short = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            short.map_err(|_| Status::NOT_FOUND)?.trim_end().clone_into(&mut text);
        }
        // The real library cuts it short too.
        let room = usize::try_from(length).unwrap_or(usize::MAX) - 1;
        let cut = (0..=room.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(cut.unwrap_or(0));
        name.put_text(&text, length)
    }

    nvmlSystemGetHicVersion(count: Pointer<u32>, _entries: Handle) |_session| {
        count.put(0)
    }

    nvmlUnitGetCount(count: Pointer<u32>) |_session| {
        count.put(0)
    }

    nvmlUnitGetHandleByIndex(_index: u32, _unit: Pointer<Handle>) |_session| {
        Err(Status::INVALID_ARGUMENT)
    }

    nvmlGetExcludedDeviceCount(count: Pointer<u32>) |_session| {
        count.put(0)
    }

    nvmlGetBlacklistDeviceCount(count: Pointer<u32>) |_session| {
        count.put(0)
    }

    nvmlGetExcludedDeviceInfoByIndex(_index: u32, _info: Handle) |_session| {
        Err(Status::INVALID_ARGUMENT)
    }

    nvmlGetBlacklistDeviceInfoByIndex(_index: u32, _info: Handle) |_session| {
        Err(Status::INVALID_ARGUMENT)
    }

    nvmlDeviceGetCount(count: Pointer<u32>) |session| {
        count.put(u32::try_from(session.cards.len()).unwrap_or(0))
    }

    nvmlDeviceGetCount_v2(count: Pointer<u32>) |session| {
        count.put(u32::try_from(session.cards.len()).unwrap_or(0))
    }
}
