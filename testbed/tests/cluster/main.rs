//! What the testbed promises, on a real cluster of two nodes shared by all tests of this file's
//! modules. Each test has a Kubernetes namespace of its own.

#[cfg(test)]
mod binding;
#[cfg(test)]
mod components;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod dra;
#[cfg(test)]
mod extender;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod shapes;

#[cfg(test)]
mod shared {
    use testbed::{Cluster, FakeNodes, Options, SchedulerSpec, Session};
    use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// The kube-scheduler that calls an extender.
    pub(crate) const EXTENDED: &str = "extended";

    /// Three fake nodes that nothing comes to by accident.
    pub(crate) const ON_FAKE: &str =
        "nodeSelector: {type: kwok}\n  tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]";

    pub(crate) fn cluster() -> &'static Cluster {
        let fake = FakeNodes::new(3).capacity("example.com/gpu", "100").tainted();
        let mut options = Options::new("bed").nodes(2).fake(fake);
        options.schedulers.push(SchedulerSpec {
            name: EXTENDED.to_owned(),
            config: format!("profiles: [{{schedulerName: {EXTENDED}}}]"),
        });
        Cluster::for_tests(options).expect("a cluster comes up")
    }

    pub(crate) fn session() -> Session {
        cluster().session().expect("its API can be used")
    }

    /// Held for reading by tests that need the cluster whole, for writing by those that break it.
    static PEACE: RwLock<()> = RwLock::const_new(());

    pub(crate) async fn in_peace() -> RwLockReadGuard<'static, ()> {
        PEACE.read().await
    }

    pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
        PEACE.write().await
    }

    /// A pod that sleeps, with more of `spec` if wanted.
    pub(crate) fn sleeper(name: &str, spec: &str) -> String {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  {spec}
  containers:
  - name: c
    image: {}
    command: [sh, -c, 'echo hello from $HOSTNAME; sleep 100000']
",
            testbed::BASE
        )
    }
}
