//! Containers of one card that begin at the same moment, beside some that take and give back all the
//! while: each is charged for its own context and nothing else, and none is refused for what others take.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use machine::{Description, PidView};

use crate::paths::account;
use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig, Share};

const TENANTS: usize = 8;
const LIMIT: u64 = 400 * MIB;
const CONTEXT: u64 = 300 * MIB;
/// In a PID namespace of its own, as a container is.
const APART: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// Whether PID namespaces can be made here.
fn able() -> bool {
    let able = Command::new("unshare").args(APART).arg("true").status();
    let able = able.is_ok_and(|status| status.success());
    if !able {
        println!("skipped: a PID namespace needs root");
    }
    able
}

/// A process in a PID namespace of its own, which ends with it.
struct Apart(Child);

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Apart {
    fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits for its end, which must be a good one.
    fn ends(mut self, who: &str) {
        let mut said = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{who}: {said}");
    }

    /// It would work for ever.
    fn lives(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None);
    }
}

/// A process of a container that says "ready", and goes on when it hears a line.
fn start(rig: &Rig, root: &str, test: &str, role: &str) -> Apart {
    let body = rig.role(root, test, role);
    let mut apart = rig.command(root, "unshare");
    apart.args(APART).arg(body.get_program()).args(body.get_args());
    apart.envs(body.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child = apart.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(said.map_while(Result::ok).any(|line| line == "ready"), "{role} in {root}");
    Apart(child)
}

fn ready() {
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Has all containers begin at the same moment, and expects all to be content.
fn begin_together(test: &str, pids: PidView, tenant: &str, rounds: usize) {
    let view = |description: &mut Description| description.pids = pids;
    let rig = Rig::with("dgx-a100", "550.163.01", &[Share::memory(0, 1024 * MIB)], view);
    rig.container("other", &[Share::memory(0, 1024 * MIB)]);
    let mut busy = ["root", "other"].map(|root| start(&rig, root, test, "busy"));
    for round in 0..rounds {
        let begin = |at: usize| {
            let root = format!("tenant-{round}-{at}");
            rig.container(&root, &[Share::memory(0, LIMIT)]);
            start(&rig, &root, test, tenant)
        };
        let mut tenants: Vec<Apart> = (0..TENANTS).map(begin).collect();
        // In every second round the host has not looked yet when they begin.
        if round % 2 == 1 {
            rig.truth(0);
        }
        tenants.iter_mut().for_each(Apart::go_on);
        for (at, tenant) in tenants.into_iter().enumerate() {
            tenant.ends(&format!("tenant {at} of round {round}"));
        }
    }
    busy.iter_mut().for_each(Apart::lives);
}

/// Takes and gives back, other amounts each time.
fn work(driver: &Driver) {
    driver.context();
    println!("\nready");
    for turn in 0_u64.. {
        let size = (2 + 2 * (turn % 200)) * MIB;
        let address = driver.allocate(size).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(100 * (turn % 7)));
        ok!(driver, cuMemFree_v2(address => u64));
    }
}

#[test]
fn who_begins_beside_others_is_charged_for_itself() {
    const TEST: &str = "who_begins_beside_others_is_charged_for_itself";
    match rig::role().as_deref() {
        None if able() => begin_together(TEST, PidView::Host, "tenant", 6),
        None => {}
        Some("busy") => work(&Driver::load()),
        Some(_) => {
            let driver = Driver::load();
            ok!(driver, cuInit(0 => u32));
            ready();
            driver.context();
            assert_eq!(account() / MIB, CONTEXT / MIB, "MiB are charged");
            assert_eq!(driver.memory(), (100 << 20, 400 << 20));
            // Code is weighed, too.
            driver.function("busy_1us");
            let rest = LIMIT - account();
            assert!(rest >= 98 * MIB, "{rest} bytes are left");
            driver.allocate(rest / (2 * MIB) * (2 * MIB)).unwrap();
            assert_eq!(driver.allocate(2 * MIB), Err(OUT_OF_MEMORY));
        }
    }
}

#[test]
fn contexts_beside_others_are_all_counted() {
    const TEST: &str = "contexts_beside_others_are_all_counted";
    match rig::role().as_deref() {
        None if able() => {
            let view = |description: &mut Description| description.pids = PidView::Host;
            let shares = [Share::memory(0, 1024 * MIB)];
            let rig = Rig::with("dgx-a100", "550.163.01", &shares, view);
            let mut busy = start(&rig, "root", TEST, "busy");
            rig.container("greedy", &[Share::memory(0, 2048 * MIB)]);
            let mut greedy = start(&rig, "greedy", TEST, "greedy");
            greedy.go_on();
            greedy.ends("greedy");
            busy.lives();
        }
        None => {}
        Some("busy") => work(&Driver::load()),
        Some(_) => {
            let driver = Driver::load();
            ok!(driver, cuInit(0 => u32));
            ready();
            let mut made = 0;
            for _ in 0..24 {
                let mut context = 0_u64;
                match call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32))
                {
                    0 => made += 1,
                    code => assert_eq!(code, OUT_OF_MEMORY),
                }
                assert_eq!(account(), made * CONTEXT);
            }
            assert_eq!(made, 6);
        }
    }
}

/// Where the driver says nothing of single processes it can be known only roughly what a context costs
/// in a busy moment. Nobody is refused for that, or charged more than was claimed.
#[test]
fn who_is_not_listed_is_not_refused_for_what_others_take() {
    const TEST: &str = "who_is_not_listed_is_not_refused_for_what_others_take";
    match rig::role().as_deref() {
        None if able() => begin_together(TEST, PidView::Unsized, "tenant", 3),
        None => {}
        Some("busy") => work(&Driver::load()),
        Some(_) => {
            let driver = Driver::load();
            ok!(driver, cuInit(0 => u32));
            ready();
            driver.context();
            let charged = account();
            assert!((16 * MIB..=LIMIT).contains(&charged), "{charged} bytes are charged");
            println!("charged {} MiB", charged / MIB);
        }
    }
}
