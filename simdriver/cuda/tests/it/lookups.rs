//! What `cuGetProcAddress` answers is what three genuine drivers answer.

use crate::driver::{Driver, Rig, role};

/// Answers were recorded for every name that CUDA's runtime asks for.
const RECORDED: &str = include_str!("lookups.tsv");
const DRIVERS: [&str; 3] = ["535.261.03", "550.163.01", "555.58.02"];

/// A lookup, and what one driver answered: a symbol or a status.
struct Lookup {
    name: &'static str,
    version: i32,
    flags: u64,
    answer: Result<String, u32>,
}

fn recorded(driver: usize) -> Vec<Lookup> {
    let mut lookups = Vec::new();
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('\t').collect();
        let cell =
            (0..=driver).rev().map(|driver| cells[2 + driver]).find(|cell| *cell != "=").unwrap();
        let answers: Vec<&str> = cell.split(',').collect();
        for flags in 0..3 {
            let answer = answers.get(flags).unwrap_or(&answers[0]);
            let answer = match answer.strip_prefix('!') {
                Some(status) => Err(status.parse().unwrap()),
                None => Ok(format!("{}{}", cells[0], answer.trim_start_matches('.'))),
            };
            let flags = flags as u64;
            lookups.push(Lookup {
                name: cells[0],
                version: cells[1].parse().unwrap(),
                flags,
                answer,
            });
        }
    }
    lookups
}

#[test]
fn lookups_are_answered_as_three_drivers_do() {
    let Some(role) = role() else {
        for driver in DRIVERS {
            let test = "lookups_are_answered_as_three_drivers_do";
            Rig::new("dgx-a100", driver).run(test, driver);
        }
        return;
    };
    let driver = Driver::load();
    let index = DRIVERS.iter().position(|driver| *driver == role).unwrap();
    let lookups = recorded(index);
    assert_eq!(lookups.len(), 1245);
    let mut wrong = Vec::new();
    for Lookup { name, version, flags, answer } in lookups {
        let (result, status, address) = driver.look_up(name, version, flags);
        let right = match &answer {
            Ok(symbol) => status == 0 && driver.find(symbol) == Some(address),
            Err(expected) => status == *expected && address.is_null(),
        };
        if result != 0 || !right {
            wrong.push(format!("{name} {version} {flags}: {answer:?}, not {result} {status}"));
        }
    }
    assert!(wrong.is_empty(), "{role}: {} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn newer_drivers_know_newer_names() {
    const TEST: &str = "newer_drivers_know_newer_names";
    let Some(role) = role() else {
        Rig::new("dgx-a100", "555.58.02").run(TEST, "older");
        Rig::new("dgx-a100", "580.65.06").run(TEST, "newer");
        return;
    };
    let driver = Driver::load();
    let (_, status, address) = driver.look_up("cuCtxGetDevice", 13000, 0);
    assert_eq!(status, 0);
    let expected = if role == "newer" { "cuCtxGetDevice_v2" } else { "cuCtxGetDevice" };
    assert_eq!(driver.find(expected), Some(address));
    let (_, status, _) = driver.look_up("cuMemcpyBatchAsync", 12080, 2);
    assert_eq!(status, u32::from(role == "older"));
}

#[test]
fn the_first_form_tells_by_its_result() {
    crate::driver::on("dgx-a100", "550.163.01", "the_first_form_tells_by_its_result", |driver| {
        let mut address = std::ptr::null_mut();
        let mut ask = |name: &std::ffi::CStr, version: i32, flags: u64| {
            let result = call!(driver, cuGetProcAddress(
                name.as_ptr() => *const i8, &raw mut address => *mut *mut std::ffi::c_void, version => i32, flags => u64));
            (result, address.is_null())
        };
        assert_eq!(ask(c"cuMemAlloc", 12000, 0), (0, false));
        assert_eq!(ask(c"cuNoSuchThing", 12000, 0), (500, true));
        assert_eq!(ask(c"cuMemAlloc", 12000, 9), (1, true));
        let nowhere = std::ptr::null_mut();
        assert_eq!(
            call!(driver, cuGetProcAddress(
            c"cuInit".as_ptr() => *const i8, nowhere => *mut *mut std::ffi::c_void, 12000 => i32, 0 => u64)),
            1
        );
    });
}

#[test]
fn private_tables_are_not_answered() {
    crate::driver::on("dgx-a100", "550.163.01", "private_tables_are_not_answered", |driver| {
        let mut table: *const std::ffi::c_void = std::ptr::dangling();
        let id = [
            0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd,
            0x9d, 0xf9_u8,
        ];
        let result = call!(driver, cuGetExportTable(&raw mut table => *mut *const std::ffi::c_void, id.as_ptr() => *const u8));
        assert_eq!((result, table.is_null()), (500, true));
    });
}
