//! The referee over files, with processes played by hand.

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use page::{CountersPage, Grants, Limits, LimitsPage, Name, Seat};
    use turns::{OpenError, Pages, Referee, Rules, make_door};

    fn write(folder: &Path, name: &str, cores: u32) -> Pages {
        let text = |text: &str| Name::new(text).unwrap();
        let limits = Limits {
            device: text("GPU-1"),
            pod: text("pod"),
            container: text(name),
            memory: 1 << 30,
            cores,
            burst: cores,
            place: 0,
            granted: 0,
            tenants: 0,
        };
        let file = |kind: &str| folder.join(format!("{name}.{kind}"));
        std::fs::write(file("limits"), page::write_limits(&limits)).unwrap();
        std::fs::write(file("counters"), page::write_counters()).unwrap();
        Pages { limits: file("limits"), counters: file("counters") }
    }

    /// Sits down in the first seat and says something in it.
    fn say(pages: &Pages, field: usize, value: &[u8]) {
        let file = std::fs::File::options().write(true).open(&pages.counters).unwrap();
        let at = |field: usize| (offset_of!(CountersPage, seats) + field) as u64;
        file.write_all_at(&1_u32.to_le_bytes(), offset_of!(CountersPage, high) as u64).unwrap();
        file.write_all_at(&7_u64.to_le_bytes(), at(offset_of!(Seat, owner))).unwrap();
        file.write_all_at(value, at(field)).unwrap();
    }

    fn granted(pages: &Pages, field: usize) -> u32 {
        let bytes = std::fs::read(&pages.limits).unwrap();
        let at = offset_of!(LimitsPage, grants) + field;
        u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    /// Wants a turn until it has one; says which.
    fn take(pages: &Pages) -> u32 {
        for wish in 1_u32.. {
            say(pages, offset_of!(Seat, wants), &wish.to_le_bytes());
            // The referee looks every while, whether it was woken or not.
            std::thread::yield_now();
            if granted(pages, offset_of!(Grants, turn)) & 0xffff == 1 {
                return granted(pages, offset_of!(Grants, epoch));
            }
        }
        0
    }

    #[test]
    fn a_turn_goes_from_one_to_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let door = folder.path().join("door");
        make_door(&door).unwrap();
        let (one, two) = (write(folder.path(), "one", 30), write(folder.path(), "two", 50));
        let referee = Referee::start(&door, Rules::USUAL).unwrap();
        referee.seat("one", one.clone()).unwrap();
        referee.seat("two", two.clone()).unwrap();
        let first = take(&one);
        assert_ne!(granted(&one, offset_of!(Grants, rate)), 0, "without rivals it is open");
        // The other wants it: the first has not begun, so it is taken from it after a while.
        say(&one, offset_of!(Seat, wants), &0_u32.to_le_bytes());
        let second = take(&two);
        assert_ne!(first, second);
        assert_eq!(granted(&one, offset_of!(Grants, turn)), 0, "never both");
        drop(referee);
        assert_eq!(granted(&two, offset_of!(Grants, turn)), 0, "who leaves takes the turn along");
        assert_eq!(granted(&two, offset_of!(Grants, heartbeat)), 0);
    }

    fn heartbeat(pages: &Pages) -> u64 {
        let bytes = std::fs::read(&pages.limits).unwrap();
        let at = offset_of!(LimitsPage, grants) + offset_of!(Grants, heartbeat);
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    /// Waits until the heartbeat is so much later than `then`.
    fn beats_on(pages: &Pages, then: u64, nanoseconds: u64) {
        while heartbeat(pages) < then + nanoseconds {
            std::thread::yield_now();
        }
    }

    /// Longer than a referee stays up for nobody.
    const LONG: u64 = 1_700_000_000;

    #[test]
    fn who_rests_beats_on_and_hears_who_rings() {
        let folder = tempfile::tempdir().unwrap();
        let (doors, all) = ((0..3).map(|n| folder.path().join(format!("door-{n}"))), 0..3);
        let all: Vec<Pages> = all.map(|n| write(folder.path(), &format!("c-{n}"), 30)).collect();
        let mut referees: Vec<Referee> = Vec::new();
        for (door, pages) in doors.zip(&all) {
            make_door(&door).unwrap();
            let referee = Referee::start(&door, Rules::USUAL).unwrap();
            say(pages, offset_of!(Seat, spent), &0_u64.to_le_bytes());
            referee.seat("one", pages.clone()).unwrap();
            referees.push(referee);
        }
        for pages in &all {
            beats_on(pages, heartbeat(pages), LONG);
        }
        // One that rests is seated beside; who was there still has a turn.
        referees[1].seat("two", write(folder.path(), "late", 30)).unwrap();
        assert_ne!(take(&all[1]), 0);
        // One that is gone does not seem to be there, and the others go on.
        referees.remove(0).vanish();
        let last = heartbeat(&all[0]);
        beats_on(&all[2], heartbeat(&all[2]), LONG);
        assert_eq!(heartbeat(&all[0]), last);
    }

    #[test]
    fn what_is_no_page_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let door = folder.path().join("door");
        make_door(&door).unwrap();
        let referee = Referee::start(&door, Rules::USUAL).unwrap();
        let pages = write(folder.path(), "one", 30);
        std::fs::write(&pages.limits, "what").unwrap();
        assert!(matches!(referee.seat("one", pages.clone()), Err(OpenError::File { .. })));
        std::fs::write(&pages.limits, [0; 600]).unwrap();
        assert!(matches!(referee.seat("one", pages), Err(OpenError::Page { .. })));
        assert!(Referee::start(Path::new("/nowhere"), Rules::USUAL).is_err());
    }
}
