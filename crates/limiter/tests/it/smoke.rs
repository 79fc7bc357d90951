//! The least that must work.

use crate::rig::{self, MIB, OUT_OF_MEMORY};

#[test]
fn a_program_allocates_and_launches_through_it() {
    rig::inside("a_program_allocates_and_launches_through_it", |driver| {
        driver.context();
        let address = driver.allocate(64 * MIB).unwrap();
        let function = driver.function("sleep_1ms");
        assert_eq!(driver.launch(function, 1, 0), 0);
        ok!(driver, cuCtxSynchronize());
        ok!(driver, cuMemFree_v2(address => u64));
        assert_eq!(driver.allocate(4096 * MIB), Err(OUT_OF_MEMORY));
    });
}
