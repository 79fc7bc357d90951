//! The programs of a cluster, and what each is built from.

/// A program of a cluster that we build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The store behind the API server.
    Etcd,
    /// The container runtime.
    Containerd,
    /// An older one, which can be told to ignore CDI. Newer ones cannot.
    OldContainerd,
    /// And what that one leaves beside each pod.
    OldShim,
    /// What containerd leaves beside each pod.
    Shim,
    /// containerd's own client, which loads images.
    Ctr,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`.
    ControllerManager,
    /// `kube-scheduler`.
    Scheduler,
    /// `kubelet`.
    Kubelet,
    /// `kubectl`, for people.
    Kubectl,
    /// `kube-proxy`, so that pods reach Services.
    KubeProxy,
    /// Plays the kubelet of nodes that do not exist.
    Kwok,
    /// `helm`, which installs our chart. No cluster needs it.
    Helm,
    /// `kubeconform`, which compares manifests with schemas. No cluster needs it.
    Kubeconform,
}

/// Go modules that pin everything a program is built from.
pub(super) struct Module {
    /// The folder in the cache.
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) files: &'static [(&'static str, &'static str)],
    /// Variables the linker sets, each to the version.
    version_variables: &'static [&'static str],
    /// Variables the linker sets to something fixed.
    fixed_variables: &'static [(&'static str, &'static str)],
}

macro_rules! module_files {
    ($folder:literal, [$($file:literal),+]) => {
        &[$(($file, include_str!(concat!("../../go/", $folder, "/", $file)))),+]
    };
}

static ETCD: Module = Module {
    name: "etcd",
    version: "v3.6.16",
    files: module_files!("etcd", ["go.mod", "go.sum", "main.go", "tools.go"]),
    version_variables: &[],
    fixed_variables: &[],
};

static CONTAINERD: Module = Module {
    name: "containerd",
    version: "v2.4.2",
    files: module_files!("containerd", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &["github.com/containerd/containerd/v2/version.Version"],
    fixed_variables: &[],
};

static OLD_CONTAINERD: Module = Module {
    name: "containerd",
    version: "v2.1.9",
    files: module_files!("containerd-2.1", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &["github.com/containerd/containerd/v2/version.Version"],
    fixed_variables: &[],
};

static KUBERNETES: Module = Module {
    name: "kubernetes",
    version: "v1.36.3",
    files: module_files!("kube", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &[
        "k8s.io/component-base/version.gitVersion",
        "k8s.io/client-go/pkg/version.gitVersion",
    ],
    // Without a commit and a date some clients refuse to parse the version.
    fixed_variables: &[
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "36"),
        ("k8s.io/component-base/version.gitTreeState", "clean"),
        ("k8s.io/component-base/version.gitCommit", "0000000000000000000000000000000000000000"),
        ("k8s.io/component-base/version.buildDate", "1970-01-01T00:00:00Z"),
    ],
};

static KWOK: Module = Module {
    name: "kwok",
    version: "v0.8.0",
    files: module_files!("kwok", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &["sigs.k8s.io/kwok/pkg/consts.Version"],
    fixed_variables: &[],
};

static HELM: Module = Module {
    name: "helm",
    version: "v3.22.0",
    files: module_files!("helm", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &["helm.sh/helm/v3/internal/version.version"],
    // The Kubernetes it takes for granted where it asks none: that of its own libraries.
    fixed_variables: &[
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "37"),
        ("helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor", "37"),
    ],
};

static KUBECONFORM: Module = Module {
    name: "kubeconform",
    version: "v0.8.0",
    files: module_files!("kubeconform", ["go.mod", "go.sum", "tools.go"]),
    version_variables: &[],
    fixed_variables: &[],
};

impl Module {
    /// The folder of its programs in the cache.
    pub(super) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// What the linker is told: no symbols, and the version.
    pub(super) fn linker_flags(&self) -> String {
        let versions = self.version_variables.iter().map(|name| (*name, self.version));
        let mut flags = String::from("-s -w");
        for (name, value) in versions.chain(self.fixed_variables.iter().copied()) {
            flags.push_str(" -X ");
            flags.push_str(name);
            flags.push('=');
            flags.push_str(value);
        }
        flags
    }
}

/// How a program is made.
pub(super) struct Recipe {
    pub(super) file: &'static str,
    pub(super) module: &'static Module,
    pub(super) package: &'static str,
    /// CPU seconds it takes after those before it in [`Program::ALL`], as once measured: the
    /// weight of its part of the progress bar, no more.
    pub(super) seconds: u32,
}

impl Program {
    /// Those of a cluster, in build order: each leaves compiled packages for the next.
    pub const ALL: [Self; 11] = [
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::Kubectl,
        Self::KubeProxy,
        Self::Etcd,
        Self::Containerd,
        Self::Shim,
        Self::Ctr,
        Self::Kwok,
    ];

    /// Those that only some tests want, built when they are asked for.
    pub const APART: [Self; 4] =
        [Self::Helm, Self::Kubeconform, Self::OldContainerd, Self::OldShim];

    /// The name of its file.
    pub fn file(self) -> &'static str {
        self.recipe().file
    }

    pub(super) fn recipe(self) -> Recipe {
        let (module, package, file, seconds): (&'static Module, _, _, _) = match self {
            Self::Etcd => (&ETCD, ".", "etcd", 45),
            Self::Containerd => (
                &CONTAINERD,
                "github.com/containerd/containerd/v2/cmd/containerd",
                "containerd",
                100,
            ),
            Self::OldContainerd => (
                &OLD_CONTAINERD,
                "github.com/containerd/containerd/v2/cmd/containerd",
                // Beside the other one, among assets.
                "containerd-2.1",
                100,
            ),
            Self::OldShim => (
                &OLD_CONTAINERD,
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                "containerd-2.1-shim-runc-v2",
                8,
            ),
            Self::Shim => (
                &CONTAINERD,
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                "containerd-shim-runc-v2",
                8,
            ),
            Self::Ctr => (&CONTAINERD, "github.com/containerd/containerd/v2/cmd/ctr", "ctr", 8),
            Self::ApiServer => kubernetes("k8s.io/kubernetes/cmd/kube-apiserver", 567),
            Self::ControllerManager => {
                kubernetes("k8s.io/kubernetes/cmd/kube-controller-manager", 135)
            }
            Self::Scheduler => kubernetes("k8s.io/kubernetes/cmd/kube-scheduler", 8),
            Self::Kubelet => kubernetes("k8s.io/kubernetes/cmd/kubelet", 36),
            Self::Kubectl => kubernetes("k8s.io/kubernetes/cmd/kubectl", 50),
            Self::KubeProxy => kubernetes("k8s.io/kubernetes/cmd/kube-proxy", 13),
            Self::Kwok => (&KWOK, "sigs.k8s.io/kwok/cmd/kwok", "kwok", 200),
            Self::Helm => (&HELM, "helm.sh/helm/v3/cmd/helm", "helm", 135),
            Self::Kubeconform => {
                (&KUBECONFORM, "github.com/yannh/kubeconform/cmd/kubeconform", "kubeconform", 4)
            }
        };
        Recipe { file, module, package, seconds }
    }
}

fn kubernetes(
    package: &'static str,
    seconds: u32,
) -> (&'static Module, &'static str, &'static str, u32) {
    let file = package.rsplit('/').next().unwrap_or(package);
    (&KUBERNETES, package, file, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_pinned_by_their_own_files() {
        for program in Program::ALL.into_iter().chain(Program::APART) {
            let module = program.recipe().module;
            let manifest = module.files.iter().find(|(name, _)| *name == "go.mod").unwrap().1;
            assert!(manifest.contains(module.version), "{} of {program:?}", module.version);
            assert!(module.files.iter().any(|(name, _)| *name == "go.sum"));
        }
    }

    #[test]
    fn files_are_named_as_the_programs_are_known() {
        let names = Program::ALL.map(Program::file);
        assert!(names.contains(&"kube-apiserver") && names.contains(&"kubelet"));
    }

    #[test]
    fn the_version_is_linked_in() {
        let flags = KUBERNETES.linker_flags();
        assert!(flags.starts_with("-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 "));
    }
}
