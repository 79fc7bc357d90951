//! `cuGetProcAddress`: which of the exports a name means, for a version of CUDA.
//!
//! The name of an export says it all: `cuMemcpyHtoD_v2_ptds` is the second form of
//! `cuMemcpyHtoD`, on the calling thread's stream. The table adds the version of CUDA that brought
//! it. A driver has what its own version brought, and answers with the newest form that the caller,
//! by the version it names, can know. Three genuine drivers answer so to all lookups recorded of
//! them (tests/lookups.rs).

use std::ffi::c_void;

use crate::abi::{Answer, Code, Out, Text, api};
use crate::process;

/// A function of the library.
pub(crate) struct Export {
    name: &'static str,
    /// The version of CUDA that brought it; 0 for names that cannot be looked up.
    since: u32,
    address: *const c_void,
}

// SAFETY: the address is that of a function; it is never written through.
unsafe impl Sync for Export {}

mod made {
    use super::Export;
    use std::ffi::c_void;
    use std::sync::atomic::AtomicU32;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// What became of a lookup, with the numbers of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Export(*const c_void),
    /// No driver of this version has the name.
    Nothing,
    /// There is such a name, but not yet in the version asked for.
    TooOld,
}

/// The handle 0 means the calling thread's stream: a flag of the lookup.
const PER_THREAD: u64 = 2;

/// The names that a driver of that version of CUDA does not export, such as 12040.
pub fn absent_in(cuda: i32) -> impl Iterator<Item = &'static str> {
    let version = u32::try_from(cuda).unwrap_or(0);
    made::EXPORTS.iter().filter(move |export| export.since > version).map(|export| export.name)
}

fn split(name: &str) -> (&str, bool) {
    let (plain, own) = match name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")) {
        Some(plain) => (plain, true),
        None => (name, false),
    };
    let base = match plain.rsplit_once("_v") {
        Some((base, form)) if form.parse::<u8>().is_ok() => base,
        _ => plain,
    };
    (base, own)
}

fn find(name: &str, version: u32, flags: u64, driver: u32) -> Found {
    // Forms of one name lie together: the table is sorted.
    let start = made::EXPORTS.partition_point(|export| export.name < name);
    let forms = made::EXPORTS[start.min(made::EXPORTS.len())..]
        .iter()
        .take_while(|export| export.name.starts_with(name))
        .filter(|export| (1..=driver).contains(&export.since) && split(export.name).0 == name);
    let newest = |own: bool| {
        let forms = forms.clone().filter(|export| split(export.name).1 == own);
        let known = forms.clone().filter(|export| export.since <= version);
        (forms.count() > 0, known.max_by_key(|export| export.since))
    };
    let (has_own, own) = newest(true);
    let (has_plain, plain) = newest(false);
    let found = if flags == PER_THREAD && has_own { own } else { plain };
    match found {
        Some(export) => Found::Export(export.address),
        None if has_own || has_plain => Found::TooOld,
        None => Found::Nothing,
    }
}

fn look_up(name: Text, version: i32, flags: u64) -> Answer<Found> {
    let name = name.get()?;
    if flags > PER_THREAD {
        return Err(Code::INVALID_VALUE);
    }
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    Ok(find(&name, version, flags, process::cuda_version()?))
}

api! {
    fn cuGetProcAddress(name: Text, function: Out<*const c_void>, version: i32, flags: u64) {
        function.check()?;
        match look_up(name, version, flags)? {
            Found::Export(address) => function.put(address),
            Found::Nothing | Found::TooOld => {
                function.put(std::ptr::null())?;
                Err(Code::NOT_FOUND)
            }
        }
    }

    // This form tells by the status, not by the result; without room for a status, by the result.
    fn cuGetProcAddress_v2(name: Text, function: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) {
        function.check()?;
        let (address, told) = match look_up(name, version, flags)? {
            Found::Export(address) => (address, 0),
            Found::Nothing => (std::ptr::null(), 1),
            Found::TooOld => (std::ptr::null(), 2),
        };
        function.put(address)?;
        if status.is_null() && told != 0 {
            return Err(Code::NOT_FOUND);
        }
        status.put_if(told);
        Ok(())
    }

    // The tables behind this call are private to NVIDIA's libraries, and one of them is how those
    // check that a driver is genuine. This one is not, and does not say it is: every id is unknown.
    fn cuGetExportTable(table: Out<*const c_void>, id: Out<[u8; 16]>) {
        table.check()?;
        id.check()?;
        table.put(std::ptr::null())?;
        Err(Code::NOT_FOUND)
    }
}
