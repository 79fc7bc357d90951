//! Which dialects are spoken, and what the administrator decided about them.

use std::collections::BTreeSet;
use std::fmt;

use model::{Mebibytes, PolicyName};

use crate::asking::{Alone, Speaks};
use crate::core_memory::{ELASTIC, ELASTIC_COM, NANO_IO};
use crate::gpushare::Gpushare;
use crate::hami::Hami;
use crate::nano::Nano;
use crate::vcuda::{INSPUR, NVIDIA, TENCENT};
use crate::vgpu_manager::VgpuManager;

/// A family of resource names and annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// nano-gpu: `nano-gpu/gpu-percent`, and our own additions to it.
    Nano,
    /// nano-gpu's first form: `nano-gpu.io/gpu-core`, `gpu-memory`.
    NanoIo,
    /// elastic-gpu: `elasticgpu.io/gpu-core`, `gpu-memory`.
    Elastic,
    /// elastic-gpu as its scheduler once spelled it: `elasticgpu.com/...`.
    ElasticCom,
    /// gpu-manager: `tencent.com/vcuda-core`, `vcuda-memory`.
    Tencent,
    /// gpu-manager as inspur ships it: `inspur.com/...`.
    Inspur,
    /// gpu-admission: `nvidia.com/vcuda-core`, `vcuda-memory`.
    NvidiaVcuda,
    /// gpushare: `aliyun.com/gpu-mem`.
    Gpushare,
    /// HAMi: `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores`.
    Hami,
    /// vgpu-manager: `nvidia.com/vgpu-number`, `vgpu-cores`, `vgpu-memory`.
    VgpuManager,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 10] = [
        Self::Nano,
        Self::NanoIo,
        Self::Elastic,
        Self::ElasticCom,
        Self::Tencent,
        Self::Inspur,
        Self::NvidiaVcuda,
        Self::Gpushare,
        Self::Hami,
        Self::VgpuManager,
    ];

    /// The name people write in options.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nano => "nano-gpu",
            Self::NanoIo => "nano-gpu.io",
            Self::Elastic => "elasticgpu.io",
            Self::ElasticCom => "elasticgpu.com",
            Self::Tencent => "tencent.com",
            Self::Inspur => "inspur.com",
            Self::NvidiaVcuda => "nvidia.com/vcuda",
            Self::Gpushare => "aliyun.com",
            Self::Hami => "hami",
            Self::VgpuManager => "vgpu-manager",
        }
    }

    /// The dialect of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.as_str() == text)
    }

    /// The resource names that draw kubelet tickets, so that the agent is asked.
    pub fn identity_resources(self) -> &'static [&'static str] {
        self.speaks().identities()
    }

    /// The resource names that only measure.
    pub fn measure_resources(self) -> &'static [&'static str] {
        self.speaks().measures()
    }

    /// The identity resource that a node with too much of it only measures.
    pub fn alone(self) -> Option<Alone> {
        self.speaks().alone()
    }

    pub(crate) fn speaks(self) -> &'static dyn Speaks {
        match self {
            Self::Nano => &Nano,
            Self::NanoIo => &NANO_IO,
            Self::Elastic => &ELASTIC,
            Self::ElasticCom => &ELASTIC_COM,
            Self::Tencent => &TENCENT,
            Self::Inspur => &INSPUR,
            Self::NvidiaVcuda => &NVIDIA,
            Self::Gpushare => &Gpushare,
            Self::Hami => &Hami,
            Self::VgpuManager => &VgpuManager,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the administrator decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The dialects that are spoken.
    pub enabled: BTreeSet<Dialect>,
    /// What one `aliyun.com/gpu-mem` is in this cluster.
    pub gpushare_unit: MemoryUnit,
    /// What elastic-gpu did with 150 of a core: take one card and drop the rest. Ours refuses.
    pub elastic_floors: bool,
    /// The policies a pod may choose for itself.
    pub policies: BTreeSet<PolicyName>,
    /// When nanogpu took over from another system, as the API writes times (RFC 3339, UTC).
    /// Placements of other systems are believed only on pods bound until then.
    pub took_over_at: Option<String>,
}

impl Default for Settings {
    /// All that the five systems spoke. HAMi and vgpu-manager are left to the administrator,
    /// because `nvidia.com/gpu` usually belongs to NVIDIA's own plugin.
    fn default() -> Self {
        let foreign = [Dialect::Hami, Dialect::VgpuManager];
        Self {
            enabled: Dialect::ALL.into_iter().filter(|d| !foreign.contains(d)).collect(),
            gpushare_unit: MemoryUnit::Gibibytes,
            elastic_floors: false,
            policies: PolicyName::ALL.into(),
            took_over_at: None,
        }
    }
}

impl Settings {
    /// The default, with every dialect spoken.
    pub fn all_dialects() -> Self {
        Self { enabled: Dialect::ALL.into(), ..Self::default() }
    }
}

/// What one unit of a memory resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryUnit {
    /// 1 GiB.
    #[default]
    Gibibytes,
    /// 1 MiB.
    Mebibytes,
}

impl MemoryUnit {
    /// One unit.
    pub const fn size(self) -> Mebibytes {
        match self {
            Self::Gibibytes => Mebibytes(1024),
            Self::Mebibytes => Mebibytes(1),
        }
    }

    /// The unit's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gibibytes => "GiB",
            Self::Mebibytes => "MiB",
        }
    }
}
