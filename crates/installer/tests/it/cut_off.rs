//! Killed at every step: the next run finishes it, or undoes it.

use installer::faults::Point;

use crate::made_up::{Files, Machine, OLD};

/// A machine that is patched, and its files, journal apart: what it remembers of the past may differ.
fn patched() -> (Machine, Files) {
    let machine = Machine::new(OLD);
    machine.patch();
    let files = relative(&machine);
    (machine, files)
}

fn relative(machine: &Machine) -> Files {
    let root = machine.path("kubernetes");
    let files = machine.files().into_iter();
    let files = files.map(|(path, it)| (path.strip_prefix(&root).unwrap().to_owned(), it));
    files.filter(|(path, _)| !path.ends_with("journal.json")).collect()
}

#[test]
fn a_patch_is_finished_or_undone_by_the_next_run() {
    let (_, wanted) = patched();
    let mut reached = 0;
    for point in Point::ALL {
        let machine = Machine::new(OLD);
        let before = machine.files();
        reached += usize::from(machine.cut_off(&machine.patch_words(), point));
        machine.run("status");
        machine.patch();
        assert!(relative(&machine) == wanted, "{point}, then patch");
        assert!(machine.run("status").out.starts_with("patched, not verified"), "{point}");

        let machine = Machine::new(OLD);
        let clean = relative(&machine);
        machine.cut_off(&machine.patch_words(), point);
        machine.rollback();
        assert!(relative(&machine) == clean, "{point}, then rollback");
        assert_eq!(machine.files().len(), before.len());
    }
    assert_eq!(reached, 6, "points of a patch");
}

#[test]
fn a_rollback_is_finished_by_the_next_run_whatever_that_is() {
    let (_, wanted) = patched();
    let clean = relative(&Machine::new(OLD));
    let mut reached = 0;
    for point in Point::ALL {
        let (machine, _) = patched();
        reached += usize::from(machine.cut_off("rollback --no-verify", point));
        machine.rollback();
        assert!(relative(&machine) == clean, "{point}, then rollback");

        let (machine, _) = patched();
        machine.cut_off("rollback --no-verify", point);
        machine.patch();
        assert!(relative(&machine) == wanted, "{point}, then patch");
    }
    assert_eq!(reached, 5, "points of a rollback");
}

#[test]
fn a_renewal_is_finished_or_undone_by_the_next_run() {
    let renewed = || {
        let (machine, _) = patched();
        machine.put("secret/client.crt", "client.crt of the second year\n");
        machine
    };
    let machine = renewed();
    machine.patch();
    let wanted = relative(&machine);
    let clean = relative(&Machine::new(OLD));
    for point in Point::ALL {
        let machine = renewed();
        machine.cut_off(&machine.patch_words(), point);
        machine.patch();
        assert!(relative(&machine) == wanted, "{point}, then patch");

        let machine = renewed();
        machine.cut_off(&machine.patch_words(), point);
        machine.rollback();
        assert!(relative(&machine) == clean, "{point}, then rollback");
    }
}

#[test]
fn what_was_cut_off_is_not_called_verified() {
    let machine = Machine::new(OLD);
    assert!(machine.cut_off(&machine.patch_words(), Point::Noted));
    machine.refuses("verify", "a run was cut off; `patch` finishes it, `rollback` undoes it");
    assert!(machine.run("status").out.starts_with("not patched: a run was cut off"));
    let (machine, _) = patched();
    assert!(machine.cut_off("rollback --no-verify", Point::Undoing));
    machine.refuses("verify", "a run was cut off");
    assert!(machine.run("status").out.starts_with("patched: a run was cut off"));
}
