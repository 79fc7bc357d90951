//! One request of every dialect, for what holds in all of them.

use dialect::Dialect;

use crate::common::Amounts;

/// A share of one card.
pub(crate) const SHARES: [(Dialect, Amounts<'static>); 10] = [
    (Dialect::Nano, &[("nano-gpu/gpu-percent", "20")]),
    (Dialect::NanoIo, &[("nano-gpu.io/gpu-core", "20"), ("nano-gpu.io/gpu-memory", "2")]),
    (Dialect::Elastic, &[("elasticgpu.io/gpu-core", "20"), ("elasticgpu.io/gpu-memory", "2048")]),
    (Dialect::ElasticCom, &[("elasticgpu.com/gpu-core", "20")]),
    (Dialect::Tencent, &[("tencent.com/vcuda-core", "20"), ("tencent.com/vcuda-memory", "8")]),
    (Dialect::Inspur, &[("inspur.com/vcuda-core", "20"), ("inspur.com/vcuda-memory", "8")]),
    (Dialect::NvidiaVcuda, &[("nvidia.com/vcuda-core", "20"), ("nvidia.com/vcuda-memory", "2048")]),
    (Dialect::Gpushare, &[("aliyun.com/gpu-mem", "2")]),
    (
        Dialect::Hami,
        &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "2048"), ("nvidia.com/gpucores", "20")],
    ),
    (
        Dialect::VgpuManager,
        &[
            ("nvidia.com/vgpu-number", "1"),
            ("nvidia.com/vgpu-cores", "20"),
            ("nvidia.com/vgpu-memory", "2048"),
        ],
    ),
];

/// The share of `dialect`.
pub(crate) fn share_of(dialect: Dialect) -> Amounts<'static> {
    SHARES.into_iter().find(|(d, _)| *d == dialect).expect("an example of every dialect").1
}

/// Two whole cards, in every dialect that can say so.
pub(crate) const PAIRS: [(Dialect, Amounts<'static>); 9] = [
    (Dialect::Nano, &[("nano-gpu/gpu-percent", "200")]),
    (Dialect::NanoIo, &[("nano-gpu.io/gpu-core", "200")]),
    (Dialect::Elastic, &[("elasticgpu.io/gpu-core", "200")]),
    (Dialect::ElasticCom, &[("elasticgpu.com/gpu-core", "200")]),
    (Dialect::Tencent, &[("tencent.com/vcuda-core", "200")]),
    (Dialect::Inspur, &[("inspur.com/vcuda-core", "200")]),
    (Dialect::NvidiaVcuda, &[("nvidia.com/vcuda-core", "200")]),
    (Dialect::Hami, &[("nvidia.com/gpu", "2")]),
    (Dialect::VgpuManager, &[("nvidia.com/vgpu-number", "2")]),
];
