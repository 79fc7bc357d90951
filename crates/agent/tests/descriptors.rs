//! A process that has no file descriptor left. It is the limit of a whole process, so this has one
//! of its own.

use std::fs::{self, File};

use agent::records::{Record, Records};
use model::codec::decode_placement;
use model::{ContainerName, PodUid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn records_that_cannot_be_opened_are_neither_gone_nor_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    let records = Records::open(&pages).unwrap();
    let record = Record {
        name: "x-1".into(),
        pod: PodUid::parse("u-1").unwrap(),
        pod_name: "team/a".into(),
        container: ContainerName::parse("main").unwrap(),
        placement: decode_placement("v1;n1;main=GPU-1:whole").unwrap(),
    };
    records.write(&record, &[]).unwrap();
    let before = getrlimit(Resource::Nofile);
    let full = |free: u64| {
        // The lowest that is free, and so many from there on.
        let next = File::open("/dev/null").map(|file| std::os::fd::AsRawFd::as_raw_fd(&file));
        let current = Some(u64::try_from(next.unwrap()).unwrap() + free);
        setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
        let listed = records.list();
        let read = records.read("x-1");
        setrlimit(Resource::Nofile, before).unwrap();
        (listed, read)
    };
    // None for the folder; one for the folder and none for what is in it.
    for free in [0, 1] {
        let (listed, read) = full(free);
        let error = listed.expect_err("nobody is gone");
        assert!(error.to_string().starts_with("cannot use"), "{error}");
        assert_eq!(read.is_err(), free == 0, "a record alone needs one");
    }
    assert_eq!(*records.list().unwrap(), [record]);
    let aside = fs::read_dir(&pages)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert_eq!(aside.filter(|name| name.starts_with('.')).count(), 0);
}
