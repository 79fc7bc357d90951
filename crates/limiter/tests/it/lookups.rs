//! Every lookup that CUDA's runtime makes is answered by the function that the driver means, or by our
//! hook in front of that very function: never by one of another ABI.

use std::ffi::{CString, c_void};
use std::path::PathBuf;

use crate::rig::{self, Driver, MIB, Rig, Share};

/// Recorded from three genuine drivers; the simulated one is tested against the same.
const RECORDED: &str = include_str!("../../../../simdriver/cuda/tests/it/lookups.tsv");
const DRIVERS: [&str; 3] = ["535.261.03", "550.163.01", "555.58.02"];

/// Name, version, flags.
fn lookups() -> Vec<(&'static str, i32, u64)> {
    let rows = RECORDED.lines().filter(|line| !line.starts_with('#'));
    rows.flat_map(|row| {
        let mut cells = row.split('\t');
        let (name, version) = (cells.next().unwrap(), cells.next().unwrap().parse().unwrap());
        (0..3).map(move |flags| (name, version, flags))
    })
    .collect()
}

/// The driver beneath us, loaded by its path.
fn genuine() -> Driver {
    let root = PathBuf::from(std::env::var_os("NANOGPU_ROOT").unwrap());
    Driver::named(root.join("driver/libcuda.so.1").to_str().unwrap())
}

/// The name of the export at an address.
fn symbol(address: *mut c_void) -> Option<String> {
    // SAFETY: a zeroed struct of pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: only looks the address up.
    let known = unsafe { libc::dladdr(address, &raw mut found) } != 0 && !found.dli_sname.is_null();
    // SAFETY: the loader's text.
    known.then(|| unsafe { std::ffi::CStr::from_ptr(found.dli_sname) }.to_str().unwrap().to_owned())
}

/// Compares all lookups through us with the same at the driver; says how many were hooked.
pub(crate) fn compare() -> (usize, usize, Vec<String>) {
    let (ours, genuine) = (Driver::load(), genuine());
    let (mut resolved, mut hooked, mut wrong) = (0, 0, Vec::new());
    for (name, version, flags) in lookups() {
        let expected = genuine.look_up(name, version, flags);
        let got = ours.look_up(name, version, flags);
        if (got.0, got.1) != (expected.0, expected.1) {
            wrong.push(format!("{name} {version} {flags}: {got:?}, not {expected:?}"));
            continue;
        }
        if expected.2.is_null() {
            continue;
        }
        resolved += 1;
        if got.2 == expected.2 {
            continue;
        }
        hooked += 1;
        let meant = symbol(expected.2).unwrap();
        // Several names may lie at one address; any of them is the same function.
        let alias = |name: &str| genuine.find(name) == Some(expected.2);
        let answer = symbol(got.2).unwrap();
        let of_ours = ours.find(&answer) == Some(got.2);
        if !of_ours || !(answer == meant || alias(&answer)) {
            wrong.push(format!("{name} {version} {flags}: {answer}, not {meant}"));
        }
    }
    (resolved, hooked, wrong)
}

#[test]
fn no_lookup_is_answered_by_another_function() {
    const TEST: &str = "no_lookup_is_answered_by_another_function";
    if rig::role().is_none() {
        for driver in DRIVERS {
            let rig = Rig::with("dgx-a100", driver, &[Share::memory(0, 2048 * MIB)], |_| {});
            rig.run(TEST, driver);
        }
        return;
    }
    let (resolved, hooked, wrong) = compare();
    assert_eq!(wrong, Vec::<String>::new());
    assert!(resolved > 1000 && hooked > 150, "{resolved} resolved, {hooked} hooked");
    println!("{resolved} resolved, {hooked} hooked, 0 wrong");
}

#[test]
fn the_lookup_function_itself_is_found_in_both_forms() {
    rig::inside("the_lookup_function_itself_is_found_in_both_forms", |driver| {
        for (version, export) in [(11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")] {
            let (code, status, address) = driver.look_up("cuGetProcAddress", version, 0);
            assert_eq!((code, status, driver.find(export)), (0, 0, Some(address)), "{version}");
        }
        // The old form, with four arguments, maps too.
        let (name, mut address) = (CString::new("cuMemAlloc").unwrap(), std::ptr::null_mut());
        ok!(driver, cuGetProcAddress(name.as_ptr() => *const i8, &raw mut address => *mut *mut c_void, 12000 => i32, 0 => u64));
        assert_eq!(driver.find("cuMemAlloc_v2"), Some(address));
        // Private tables are the driver's own affair: the answer is the simulated driver's.
        let (mut table, id) = (std::ptr::null_mut::<c_void>(), [7_u8; 16]);
        let code = call!(driver, cuGetExportTable(&raw mut table => *mut *mut c_void, &raw const id => *const [u8; 16]));
        assert_eq!((code, table.is_null()), (500, true));
    });
}
