//! The start of a container over real files: what it writes, and what bad input does to it. Also how
//! long it takes on a full node, on demand.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::args::Args;
use agent::laying::may_make_nodes;
use agent::pods::Pods;
use agent::probing::Prober;
use agent::records::Records;
use agent::refusal::Refusal;
use agent::rungs::Rung;
use agent::settings::{Folder, Settings};
use agent::starting::{KIND, STEM, Starter};
use clap::Parser as _;
use kubelet::cdi::{Kind, Specs};
use kubelet::checkpoint::{FILE, encode_answer};
use kubelet::devices::IdSet;
use kubelet::plugin::Allocation;
use kubelet::wire::device_plugin::CdiDevice;
use model::{Inventory, Pod, Profile};
use tokio::sync::watch;

const RESOURCE: &str = "nano-gpu/gpu-percent";

/// A node's folders, and pods that hold a share each.
struct Bench {
    root: tempfile::TempDir,
    node: String,
    pods: Vec<Pod>,
    entries: Vec<String>,
}

impl Bench {
    /// `count` pods, around the cards of the largest machine, 3 % each.
    fn new(count: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["plugins", "cdi", "driver/usr/lib64", "dev", "proc"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(root.path().join("driver/usr/lib64").join(name), name).unwrap();
        }
        let mut bench = Self { root, node: "n1".into(), pods: Vec::new(), entries: Vec::new() };
        for n in 0..count {
            bench.add(n);
        }
        bench.write_checkpoint();
        bench
    }

    fn add(&mut self, n: usize) {
        let card = n % 8;
        let text = format!(
            r#"{{"metadata":{{"name":"pod-{n}","namespace":"team","uid":"u-{n}","annotations":
                {{"nano-gpu/placement":"v1;n1;main=GPU-{card}:3%+1000Mi"}}}},
              "spec":{{"containers":[{{"name":"main",
                "resources":{{"limits":{{"{RESOURCE}":"3"}}}}}}]}}}}"#
        );
        self.pods.push(Pod::from_json(&text).unwrap());
        let answer = encoded(&name(n));
        let ids: Vec<String> = ids(n).iter().map(|id| format!("\"{id}\"")).collect();
        self.entries.push(format!(
            r#"{{"PodUID":"u-{n}","ContainerName":"main","ResourceName":"{RESOURCE}",
               "DeviceIDs":{{"-1":[{}]}},"AllocResp":"{answer}"}}"#,
            ids.join(",")
        ));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write_checkpoint(&self) {
        let text = format!(
            r#"{{"Data":{{"PodDeviceEntries":[{}],"RegisteredDevices":{{}}}},"Checksum":1}}"#,
            self.entries.join(",")
        );
        fs::write(self.path("plugins").join(FILE), text).unwrap();
    }

    fn settings(&self) -> Settings {
        let args =
            Args::parse_from(["nanogpu-agent", "--node-name", &self.node, "--isolation", "none"]);
        Settings {
            plugins: self.path("plugins"),
            cdi: self.path("cdi"),
            pages: Folder::same(self.path("pages")),
            driver: Folder::same(self.path("driver")),
            dev: Folder::same(self.path("dev")),
            proc: self.path("proc"),
            patience: Duration::ZERO,
            ..args.settings().unwrap()
        }
    }

    fn starter(&self) -> Starter {
        self.starter_with(self.settings())
    }

    fn starter_with(&self, settings: Settings) -> Starter {
        let settings = Arc::new(settings);
        let specs = Specs::open(&settings.cdi).unwrap();
        let records = Records::open(&settings.pages.here).unwrap();
        let pods = Pods::fixed(self.pods.iter().cloned());
        let inventory: Arc<Inventory> =
            Arc::new(Profile::named("dgx-a100").unwrap().inventory("GPU").unwrap());
        let seen = watch::channel(inventory).1;
        let kind = Kind::parse(KIND).unwrap();
        let prober = Arc::new(Prober::new(
            settings.handing,
            may_make_nodes(&settings.pages.here),
            specs.clone(),
            pods.clone(),
            settings.proc.clone(),
            settings.pages.here.join(".no-cdi"),
        ));
        Starter::new(settings, kind, specs, records, pods, None, seen, None, prober)
    }

    async fn start(&self, n: usize) -> Result<(), Refusal> {
        let started = self.starter().start(RESOURCE, &ids(n), &|| {}).await;
        started.map(drop).map_err(|refused| refused.refusal)
    }

    fn specs(&self) -> BTreeSet<String> {
        let names = fs::read_dir(self.path("cdi")).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// An answer of ours as the kubelet keeps it.
fn encoded(name: &str) -> String {
    let cdi_devices = vec![CdiDevice { name: format!("{KIND}={name}") }];
    encode_answer(&Allocation { cdi_devices, ..Allocation::default() })
}

fn ids(n: usize) -> IdSet {
    (0..3).map(|k| format!("nano-{}-{:02}", n % 8, (n / 8) * 3 + k)).collect()
}

fn name(n: usize) -> String {
    format!("{n:016x}-{n:016x}")
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[tokio::test]
async fn a_start_writes_a_record_and_a_spec_once() {
    let bench = Bench::new(2);
    bench.start(1).await.unwrap();
    let file = format!("{STEM}{}.json", name(1));
    assert_eq!(bench.specs(), [file.clone()].into());
    let text = fs::read_to_string(bench.path("cdi").join(&file)).unwrap();
    assert!(text.contains("/dev/nvidia1") && !text.contains("/dev/nvidia0"), "{text}");
    let before = fs::metadata(bench.path("cdi").join(&file)).unwrap().modified().unwrap();
    bench.start(1).await.unwrap();
    let after = fs::metadata(bench.path("cdi").join(&file)).unwrap().modified().unwrap();
    assert_eq!(before, after, "a spec that is there is never written again");
}

#[tokio::test]
async fn a_checkpoint_that_is_missing_torn_or_of_another_form_refuses_the_start() {
    let bench = Bench::new(1);
    let file = bench.path("plugins").join(FILE);
    let whole = fs::read_to_string(&file).unwrap();
    for (text, says) in [
        (&whole[..whole.len() / 2], "torn"),
        (r#"{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}"#, "does not know"),
        (r#"{"v2":{}}"#, "it is none"),
    ] {
        fs::write(&file, text).unwrap();
        let refusal = bench.start(0).await.unwrap_err();
        assert!(chain(&refusal).contains(says), "{text}: {}", chain(&refusal));
    }
    fs::remove_file(&file).unwrap();
    assert!(matches!(bench.start(0).await, Err(Refusal::NoCheckpoint(_))));
    assert_eq!(bench.specs(), BTreeSet::new());
    fs::write(&file, whole).unwrap();
    bench.start(0).await.unwrap();
}

#[tokio::test]
async fn a_cdi_folder_that_goes_away_refuses_the_start_until_it_is_back() {
    let bench = Bench::new(1);
    let starter = bench.starter();
    fs::remove_dir(bench.path("cdi")).unwrap();
    let refused = starter.start(RESOURCE, &ids(0), &|| {}).await.unwrap_err();
    assert!(matches!(refused.refusal, Refusal::Unwritable { what: "CDI spec", .. }));
    fs::create_dir(bench.path("cdi")).unwrap();
    starter.start(RESOURCE, &ids(0), &|| {}).await.unwrap();
    assert_eq!(bench.specs().len(), 1);
}

/// A file system of `options` at `at`, which goes with this; none where that is not allowed.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path, options: &str) -> Option<Self> {
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(at)
            .stderr(std::process::Stdio::null())
            .status();
        done.is_ok_and(|status| status.success()).then(|| Self(at.to_owned()))
    }

    fn change(&self, options: &str) {
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_cdi_folder_that_is_read_only_or_full_refuses_the_start_and_leaves_nothing_torn() {
    let bench = Bench::new(2);
    // Nobody but root can mount; then the story is told elsewhere.
    let Some(mounted) = Mounted::tmpfs(&bench.path("cdi"), "size=64k,mode=755") else { return };
    mounted.change("ro");
    let refusal = bench.start(0).await.unwrap_err();
    assert!(chain(&refusal).contains("Read-only"), "{}", chain(&refusal));
    mounted.change("rw");
    fs::write(bench.path("cdi/ballast"), vec![0; 1 << 20]).unwrap_err();
    let refusal = bench.start(0).await.unwrap_err();
    assert!(chain(&refusal).contains("No space"), "{}", chain(&refusal));
    assert_eq!(bench.specs(), ["ballast".to_owned()].into(), "no half of a spec");
    fs::remove_file(bench.path("cdi/ballast")).unwrap();
    bench.start(0).await.unwrap();
    drop(mounted);
}

#[tokio::test]
async fn a_disk_without_room_for_pages_refuses_the_start() {
    let bench = Bench::new(1);
    fs::create_dir(bench.path("pages")).unwrap();
    let Some(mounted) = Mounted::tmpfs(&bench.path("pages"), "size=1m,mode=755") else { return };
    fs::write(bench.path("pages/.ballast"), vec![0; 2 << 20]).unwrap_err();
    let refusal = bench.start(0).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Unwritable { what: "pages", .. }), "{refusal}");
    assert_eq!(bench.specs(), BTreeSet::new(), "no spec without its record");
    fs::remove_file(bench.path("pages/.ballast")).unwrap();
    bench.start(0).await.unwrap();
    drop(mounted);
}

#[tokio::test]
async fn a_torn_or_foreign_spec_makes_way_and_ours_stays() {
    let bench = Bench::new(3);
    let path = |n: usize| bench.path("cdi").join(format!("{STEM}{}.json", name(n)));
    bench.start(2).await.unwrap();
    let ours = fs::read(path(2)).unwrap();
    fs::write(path(0), &ours[..ours.len() / 2]).unwrap();
    fs::write(path(1), String::from_utf8_lossy(&ours).replace(KIND, "other/kind")).unwrap();
    for n in [0, 1] {
        bench.start(n).await.unwrap();
        let specs = Specs::open(bench.path("cdi")).unwrap();
        let spec = specs.read(&format!("{STEM}{}", name(n))).unwrap().unwrap();
        assert_eq!((spec.kind().to_string().as_str(), spec.devices()[0].name()), (KIND, &*name(n)));
        let aside = bench.path("cdi").join(format!(".{STEM}{}.aside", name(n)));
        assert!(aside.is_file(), "for people to look at");
    }
    // A spec without its record is as good as ours: the runtime may have read it.
    fs::remove_dir_all(bench.path("pages").join(name(2))).unwrap();
    bench.start(2).await.unwrap();
    assert_eq!(fs::read(path(2)).unwrap(), ours);
}

#[tokio::test]
async fn pages_are_written_for_our_library_only() {
    let bench = Bench::new(1);
    let pages = |settings: Settings| async {
        let _ = fs::remove_dir_all(bench.path("pages"));
        let _ = fs::remove_file(bench.path("cdi").join(format!("{STEM}{}.json", name(0))));
        bench.starter_with(settings).start(RESOURCE, &ids(0), &|| {}).await.unwrap();
        let folder = fs::read_dir(bench.path("pages").join(name(0))).unwrap();
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let none: BTreeSet<String> = pages(bench.settings()).await;
    assert_eq!(none, ["holder.json".to_owned()].into());
    fs::create_dir(bench.path("limiter")).unwrap();
    fs::write(bench.path("limiter").join("libnanogpu.so"), "x").unwrap();
    let limiter = Folder::same(bench.path("limiter"));
    let ours = pages(Settings { rung: Rung::Limiter, limiter, ..bench.settings() }).await;
    let files =
        ["0.counters", "0.door", "0.limits", "holder.json", "ld.so.preload"].map(str::to_owned);
    assert_eq!(ours, files.into());
}

#[tokio::test]
async fn pages_of_another_version_and_of_another_isolation_are_written_anew() {
    let bench = Bench::new(1);
    fs::create_dir(bench.path("limiter")).unwrap();
    fs::write(bench.path("limiter").join("libnanogpu.so"), "x").unwrap();
    let limiter = Folder::same(bench.path("limiter"));
    let with_pages = || {
        let settings = Settings { rung: Rung::Limiter, ..bench.settings() };
        bench.starter_with(Settings { limiter: limiter.clone(), ..settings })
    };
    let spec = bench.path("cdi").join(format!("{STEM}{}.json", name(0)));
    let page = bench.path("pages").join(name(0)).join("0.limits");
    // The agent before had no isolation, and a reboot has emptied the folder of specs.
    bench.start(0).await.unwrap();
    assert!(!page.exists());
    fs::remove_file(&spec).unwrap();
    with_pages().start(RESOURCE, &ids(0), &|| {}).await.unwrap();
    let written = fs::read(&page).unwrap();
    assert!(page::read_limits(&written).is_ok());
    // The agent before wrote a layout that our library does not know.
    let before = fs::read(&spec).unwrap();
    let mut other = written.clone();
    other[8] = 99;
    fs::remove_file(&page).unwrap();
    fs::write(&page, other).unwrap();
    with_pages().start(RESOURCE, &ids(0), &|| {}).await.unwrap();
    assert_eq!(fs::read(&page).unwrap(), written);
    assert_eq!(fs::read(&spec).unwrap(), before, "a spec is never changed");
    // Without isolation again: what the spec mounts stays.
    bench.start(0).await.unwrap();
    assert!(page.exists());
}

#[tokio::test]
async fn a_node_that_was_renamed_starts_nothing_that_was_placed_under_its_old_name() {
    let bench = Bench { node: "n2".into(), ..Bench::new(1) };
    let refusal = bench.start(0).await.unwrap_err();
    let text = "were chosen on node n1, but it runs on n2; delete the pod";
    assert!(refusal.to_string().contains(text), "{refusal}");
    assert_eq!(bench.specs(), BTreeSet::new());
}

#[tokio::test]
async fn a_kubelet_that_lost_a_write_is_made_to_write_again() {
    let bench = Bench::new(2);
    let file = bench.path("plugins").join(FILE);
    let whole = fs::read_to_string(&file).unwrap();
    let settings = Settings { patience: Duration::from_secs(20), ..bench.settings() };
    let starter = bench.starter_with(settings);
    // What the older of two writes left: pod 0 is not in it.
    let lost = Bench { entries: bench.entries[1..].to_vec(), ..Bench::new(2) };
    lost.write_checkpoint();
    fs::copy(lost.path("plugins").join(FILE), &file).unwrap();
    starter.start(RESOURCE, &ids(0), &|| fs::write(&file, &whole).unwrap()).await.unwrap();

    // Pod 1 is in it, with the answer of a pod that had these IDs before.
    starter.gave(RESOURCE, &ids(1), "0123456789abcdef-0123456789abcdef");
    let newer = whole.replace(&encoded(&name(1)), &encoded("0123456789abcdef-0123456789abcdef"));
    assert_ne!(newer, whole);
    let held =
        starter.start(RESOURCE, &ids(1), &|| fs::write(&file, &newer).unwrap()).await.unwrap();
    assert_eq!(held[0].name, "0123456789abcdef-0123456789abcdef");
}

/// Not a test of anything: numbers for docs/results. `NANOGPU_BENCH=1` asks for them.
#[tokio::test]
async fn how_long_a_start_takes_with_250_pods_on_the_node() {
    if std::env::var_os("NANOGPU_BENCH").is_none() {
        return;
    }
    let bench = Bench::new(250);
    let starter = bench.starter();
    let mut taken: Vec<Duration> = Vec::new();
    for n in 0..250 {
        let begin = Instant::now();
        starter.start(RESOURCE, &ids(n), &|| {}).await.map_err(|refused| refused.refusal).unwrap();
        taken.push(begin.elapsed());
    }
    let mut again: Vec<Duration> = Vec::new();
    for n in 0..250 {
        let begin = Instant::now();
        starter.start(RESOURCE, &ids(n), &|| {}).await.map_err(|refused| refused.refusal).unwrap();
        again.push(begin.elapsed());
    }
    for (what, mut times) in [("first start", taken), ("restart", again)] {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e3;
        let max = times[times.len() - 1].as_secs_f64() * 1e3;
        println!("{what}: p50 {:.2} ms, p99 {:.2} ms, max {max:.2} ms", at(50), at(99));
    }
}
