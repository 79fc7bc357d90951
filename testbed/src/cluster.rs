//! A cluster: bringing it up, and what a test does to its parts.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::api::Session;
use crate::binaries::{Binaries, Progress};
use crate::block::block_on;
use crate::cgroups::Cgroups;
use crate::component::{ANCHOR, Component, Place, Running, SYSTEM, Spec};
use crate::control::{self, API_ADDRESS, BRIDGE, SERVICES};
use crate::down::{self, lock, need_root, sweep};
use crate::fake;
use crate::forward;
use crate::images::{self, base_images};
use crate::layout::{Layout, Record};
use crate::namespaces::{Namespaces, within};
use crate::node;
use crate::options::{Options, SchedulerSpec};
use crate::pki::{self, Authority};
use crate::process::{Identity, signal};
use crate::scheduler;
use crate::sysctls;

/// How long a part of the control plane may take. Only a machine in trouble needs it.
const PATIENCE: Duration = Duration::from_mins(3);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    layout: Layout,
    binaries: Binaries,
}

/// What `up` took.
#[derive(Debug, Clone)]
pub struct Started {
    /// Each step with its time.
    pub steps: Vec<(&'static str, Duration)>,
    /// From the first to the last.
    pub total: Duration,
}

/// Whose cluster it is.
enum Owner {
    /// A test's: it is worth nothing when that ends. The way to it is a thread.
    Test,
    /// A person's: it stays. The way to it is this program, started again.
    Person(PathBuf),
}

impl Cluster {
    /// Brings up a cluster that outlives this program, which must be the testbed's own.
    pub fn up(options: Options, progress: &mut Progress) -> anyhow::Result<(Self, Started)> {
        let program = std::env::current_exe().context("cannot find our own program")?;
        Self::start(options, &Owner::Person(program), progress)
    }

    /// The cluster of this name, if it is up.
    pub fn find(name: &str, progress: &mut Progress) -> anyhow::Result<Option<Self>> {
        let layout = Layout::of(name)?;
        if !is_up(&layout) {
            return Ok(None);
        }
        Ok(Some(Self { layout, binaries: Binaries::prepare(progress)? }))
    }

    /// A cluster for the tests of this process: made at the first call, taken away when the process
    /// ends. If it ends without a word, the next test to start one takes it away.
    pub fn for_tests(mut options: Options) -> anyhow::Result<&'static Self> {
        static STARTED: Mutex<BTreeMap<String, &'static Cluster>> = Mutex::new(BTreeMap::new());
        extern "C" fn take_away() {
            for name in STARTED
                .lock()
                .map(|map| map.keys().cloned().collect::<Vec<_>>())
                .unwrap_or_default()
            {
                let _ = down::down(&name);
            }
        }
        // Short, because socket paths carry it.
        options.name = format!("t{}-{}", std::process::id(), options.name);
        let Ok(mut started) = STARTED.lock() else {
            bail!("a cluster could not be started before")
        };
        if let Some(cluster) = started.get(&options.name) {
            return Ok(cluster);
        }
        sweep()?;
        let name = options.name.clone();
        let (cluster, _) = Self::start(options, &Owner::Test, &mut Progress::new())?;
        let cluster: &'static Self = Box::leak(Box::new(cluster));
        if started.is_empty() {
            // SAFETY: the function takes nothing, returns nothing and does not unwind: what could
            // fail in it is ignored.
            unsafe { libc::atexit(take_away) };
        }
        started.insert(name, cluster);
        Ok(cluster)
    }

    fn start(
        options: Options,
        owner: &Owner,
        progress: &mut Progress,
    ) -> anyhow::Result<(Self, Started)> {
        need_root()?;
        options.check()?;
        let layout = Layout::of(&options.name)?;
        let lock = lock(&layout)?;
        if is_up(&layout) {
            bail!(
                "cluster `{0}` is already up; `export KUBECONFIG={1}` to use it, or take it down first \
                 (`cargo xtask cluster down --name {0}`)",
                options.name,
                layout.kubeconfig().display()
            );
        }
        if down::remove(&layout)? {
            progress.say(&format!(
                "removed what a cluster `{}` that did not come up left",
                options.name
            ));
        }
        let binaries = Binaries::prepare(progress)?;
        let cluster = Self { layout, binaries };
        let outcome = cluster.bring_up(options, owner);
        drop(lock);
        match outcome {
            Ok(started) => Ok((cluster, started)),
            Err(_) if down::is_abandoned() => loop {
                thread::park();
            },
            Err(error) => {
                // Its logs are the only way to see why, so they stay until the next `up`.
                let kept = cluster.keep_logs();
                let _ = down::remove(&cluster.layout);
                Err(match kept {
                    Some(folder) => error.context(format!("logs are in {}", folder.display())),
                    None => error,
                })
            }
        }
    }

    fn bring_up(&self, options: Options, owner: &Owner) -> anyhow::Result<Started> {
        let layout = &self.layout;
        let mut clock = Clock::new();
        sysctls::keep()?;
        let mut record = Record {
            api_port: options.api_port,
            owner: match owner {
                Owner::Test => Some(Identity::own()?),
                Owner::Person(_) => None,
            },
            ready: false,
            options,
        };
        for folder in [layout.components(), layout.logs(), layout.config(), layout.images()] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        layout.write_record(&record)?;
        // Taken before anything is started, so that a port in use costs nothing.
        let reserved = forward::listen(record.options.api_port)?;
        record.api_port = reserved.local_addr()?.port();
        layout.write_record(&record)?;
        Cgroups::of(layout.name())?.create(SYSTEM)?;
        Spec::new(&ANCHOR, "sleep", Place::NewNetwork).arg("infinity").start(layout)?;
        self.make_network(record.options.nodes)?;
        let authority = Authority::create(layout)?;
        for (index, node) in record.options.node_names().iter().enumerate() {
            authority.add_node(layout, node, &node::address(index + 1))?;
        }
        clock.step("namespaces, certificates");

        control::etcd(layout, &self.binaries).start(layout)?;
        control::api_server(layout, &self.binaries, &record.options)?.start(layout)?;
        drop(reserved);
        self.open_the_way(owner, record.api_port)?;
        let nodes = self.start_nodes(&record.options)?;
        clock.step("containerd, images");
        self.wait_ready("kube-apiserver", |session| async move { session.api_ready().await })?;
        clock.step("API server");

        self.start_controllers(&record.options)?;
        self.wait_ready("kube-controller-manager", |session| async move {
            session.accounts_ready().await
        })?;
        clock.step("controllers, scheduler");
        let expected: usize =
            nodes + record.options.fake_nodes.iter().map(|group| group.count).sum::<usize>();
        if !record.options.fake_nodes.is_empty() {
            let groups = record.options.fake_nodes.clone();
            let session = self.session();
            block_on(async move { fake::create(session?.client(), &groups).await })??;
        }
        self.wait_ready("the nodes", |session| async move { session.nodes_ready(expected).await })?;
        clock.step("nodes ready");
        record.ready = true;
        layout.write_record(&record)?;
        Ok(clock.started())
    }

    /// A bridge for the pods, with an address for the API server and each node.
    fn make_network(&self, nodes: usize) -> anyhow::Result<()> {
        let mut lines = vec![
            "link set lo up".to_owned(),
            "link add cni0 type bridge".to_owned(),
            format!("addr add {BRIDGE} dev cni0"),
        ];
        lines.extend(
            (1..=nodes).map(|index| format!("addr add {}/16 dev cni0", node::address(index))),
        );
        lines.push("link set cni0 up".to_owned());
        // The API server calls webhooks by the address of their service. kube-proxy turns that into a
        // pod's, but only for what has a way at all.
        lines.push(format!("route add {SERVICES} dev cni0 src {API_ADDRESS}"));
        within(&self.network()?, || {
            for line in &lines {
                let output = Command::new("ip")
                    .args(line.split(' '))
                    .env("PATH", crate::binaries::packages::full_path())
                    .output()
                    .context("cannot run ip")?;
                if !output.status.success() {
                    bail!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim());
                }
            }
            // Ports of connections that come and go by the hundred stay clear of those that are listened on:
            // nobody can listen where one was, until a minute after its end.
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", "41000 60999")
                .context("cannot set the ports of connections")?;
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot turn on forwarding")
        })?
    }

    fn network(&self) -> anyhow::Result<Namespaces> {
        Namespaces::net_of(Running::of(&self.layout, ANCHOR)?.identity.pid)
    }

    fn open_the_way(&self, owner: &Owner, port: u16) -> anyhow::Result<()> {
        let layout = &self.layout;
        let target = SocketAddr::new(API_ADDRESS.parse()?, 6443);
        match owner {
            Owner::Test => {
                forward::on_thread(layout, port, target)?;
            }
            Owner::Person(program) => {
                Spec::new(&"forward", program, Place::Host)
                    .arg("forward")
                    .arg(layout.name())
                    .arg(port.to_string())
                    .arg(target.to_string())
                    .start(layout)?;
            }
        }
        pki::kubeconfig(layout, "admin", &format!("https://127.0.0.1:{port}"), &layout.kubeconfig())
    }

    /// All nodes at once; the answer is how many.
    fn start_nodes(&self, options: &Options) -> anyhow::Result<usize> {
        if options.nodes == 0 {
            return Ok(0);
        }
        let images = base_images(&self.binaries, &self.layout.images())?;
        thread::scope(|scope| {
            let starting: Vec<_> = (1..=options.nodes)
                .map(|index| {
                    let images = &images;
                    scope.spawn(move || {
                        node::start(&self.layout, &self.binaries, options, index, images)
                    })
                })
                .collect();
            for node in starting {
                match node.join() {
                    Ok(outcome) => outcome?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(options.nodes)
        })
    }

    fn start_controllers(&self, options: &Options) -> anyhow::Result<()> {
        let (layout, binaries) = (&self.layout, &self.binaries);
        control::controller_manager(layout, binaries, options).start(layout)?;
        for (index, spec) in options.schedulers.iter().enumerate() {
            scheduler::spec(layout, binaries, options, index, spec)?.start(layout)?;
        }
        control::kube_proxy(layout, binaries)?.start(layout)?;
        if !options.fake_nodes.is_empty() {
            fake::kwok(layout, binaries)?.start(layout)?;
        }
        Ok(())
    }

    /// Asks until the answer is yes. A part that died is the answer at once.
    fn wait_ready<F, A>(&self, what: &str, ask: F) -> anyhow::Result<()>
    where
        F: Fn(Session) -> A + Send + Sync,
        A: Future<Output = anyhow::Result<bool>> + Send,
    {
        let session = self.session()?;
        block_on(async {
            let started = Instant::now();
            let mut last = None;
            while started.elapsed() < PATIENCE {
                match ask(session.clone()).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => last = None,
                    Err(error) => last = Some(error),
                }
                if let Some(dead) = self.dead() {
                    bail!("{dead} ended: {}", node::last_lines(&self.layout, &dead));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            match last {
                Some(error) => {
                    Err(error.context(format!("{what} is not ready after {PATIENCE:?}")))
                }
                None => bail!("{what} is not ready after {PATIENCE:?}"),
            }
        })?
    }

    /// A component that was started and is no more.
    fn dead(&self) -> Option<String> {
        Running::all(&self.layout)
            .into_iter()
            .find(|running| !running.identity.is_alive())
            .map(|running| running.spec.name)
    }

    fn keep_logs(&self) -> Option<PathBuf> {
        let target = self.layout.root().with_extension("failed");
        let _ = fs::remove_dir_all(&target);
        fs::rename(self.layout.logs(), &target).ok().map(|()| target)
    }

    /// Where its files are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The programs it runs.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// A client of its API server.
    pub fn session(&self) -> anyhow::Result<Session> {
        Session::open(&self.layout.kubeconfig())
    }

    /// Listens inside the cluster's network, so that its components reach us: an extender, a webhook.
    pub fn listen(&self, address: &str) -> anyhow::Result<TcpListener> {
        within(&self.network()?, || TcpListener::bind(address))?
            .with_context(|| format!("cannot listen on {address} in the cluster"))
    }

    /// Starts a program on the host that ends with the cluster. Its output is the log `name`; one that
    /// runs under that name already is ended first.
    pub fn beside(&self, name: &str, program: &Path, args: &[&str]) -> anyhow::Result<()> {
        self.put(name, program, args, Place::Host)
    }

    /// The same in the cluster's network, where a pod on the network of its host is too.
    pub fn inside(&self, name: &str, program: &Path, args: &[&str]) -> anyhow::Result<()> {
        self.put(name, program, args, Place::Cluster)
    }

    fn put(&self, name: &str, program: &Path, args: &[&str], place: Place) -> anyhow::Result<()> {
        if let Ok(running) = Running::of(&self.layout, name) {
            running.stop(Duration::from_secs(5));
            let _ = fs::remove_file(self.layout.log(name));
        }
        let spec = Spec::new(&name, program, place);
        args.iter().fold(spec, |spec, arg| spec.arg(*arg)).start(&self.layout)?;
        Ok(())
    }

    /// Opens a port on 127.0.0.1 that leads to `target` in the cluster, while this process lives.
    pub fn forward(&self, target: SocketAddr) -> anyhow::Result<u16> {
        forward::on_thread(&self.layout, 0, target)
    }

    /// Gives a node an image.
    pub fn load_image(&self, node: &str, archive: &Path) -> anyhow::Result<()> {
        images::load(&self.layout, &self.binaries, node, archive)
    }

    /// Stops a component and starts it again.
    pub fn restart(&self, component: &Component) -> anyhow::Result<()> {
        self.stop(component)?;
        self.revive(component)
    }

    /// Asks a component to end, and ends it if it has not after five seconds.
    pub fn stop(&self, component: &Component) -> anyhow::Result<()> {
        self.running(component)?.stop(Duration::from_secs(5));
        Ok(())
    }

    /// Ends a component with SIGKILL.
    pub fn kill(&self, component: &Component) -> anyhow::Result<()> {
        self.running(component)?.kill();
        Ok(())
    }

    /// Starts a component that was killed or stopped.
    pub fn revive(&self, component: &Component) -> anyhow::Result<()> {
        let running = self.running(component)?;
        if running.identity.is_alive() {
            bail!("{component} is running");
        }
        let running = running.spec.start(&self.layout)?;
        // A kubelet that finds no runtime when it starts ends.
        if let Component::Containerd(node) = component {
            node::wait_for_containerd(&self.layout, &self.binaries, node, &running)?;
        }
        Ok(())
    }

    /// Stops a component where it stands, with SIGSTOP.
    pub fn pause(&self, component: &Component) -> anyhow::Result<()> {
        self.signal(component, libc::SIGSTOP)
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: &Component) -> anyhow::Result<()> {
        self.signal(component, libc::SIGCONT)
    }

    fn signal(&self, component: &Component, number: i32) -> anyhow::Result<()> {
        if !self.running(component)?.identity.signal(number) {
            bail!("{component} is not running");
        }
        Ok(())
    }

    fn running(&self, component: &Component) -> anyhow::Result<Running> {
        Running::of(&self.layout, &component.to_string())
    }

    /// Gives a scheduler another configuration and starts it anew.
    pub fn configure_scheduler(&self, name: &str, config: &str) -> anyhow::Result<()> {
        let spec = SchedulerSpec { name: name.to_owned(), config: config.to_owned() };
        scheduler::write_config(&self.layout, &spec)?;
        self.restart(&Component::Scheduler(name.to_owned()))
    }

    /// The processes of a pod or a container on a real node, by its UID or its ID.
    pub fn processes_of(&self, id: &str) -> anyhow::Result<Vec<i32>> {
        Ok(Cgroups::of(self.layout.name())?.processes_of(id))
    }

    /// Ends a process of a pod with SIGKILL.
    pub fn kill_process(&self, pid: i32) -> anyhow::Result<()> {
        if !Cgroups::of(self.layout.name())?.processes().contains(&pid) {
            bail!("process {pid} is not of cluster `{}`", self.layout.name());
        }
        signal(pid, libc::SIGKILL);
        Ok(())
    }
}

/// Whether `up` came to its end and its API server still lives.
fn is_up(layout: &Layout) -> bool {
    let alive =
        |name: &str| Running::of(layout, name).is_ok_and(|running| running.identity.is_alive());
    let wanted = |record: Record| record.ready && record.owner.is_none_or(|owner| owner.is_alive());
    layout.record().is_ok_and(wanted) && alive(ANCHOR) && alive("kube-apiserver")
}

struct Clock {
    started: Instant,
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: now, steps: Vec::new() }
    }

    fn step(&mut self, name: &'static str) {
        self.steps.push((name, self.last.elapsed()));
        self.last = Instant::now();
    }

    fn started(self) -> Started {
        Started { steps: self.steps, total: self.started.elapsed() }
    }
}
