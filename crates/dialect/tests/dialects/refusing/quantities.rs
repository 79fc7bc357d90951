//! Texts that are no count.

use dialect::Dialect;

use crate::common::pod;
use crate::examples::share_of;

/// The refusal of `value` for `resource` in an otherwise good request.
fn refusal(dialect: Dialect, resource: &str, value: &str) -> String {
    let mut limits: Vec<(&str, &str)> = share_of(dialect).to_vec();
    limits.retain(|(name, _)| *name != resource);
    limits.push((resource, value));
    pod().app("main", &limits).refusal()
}

#[test]
fn what_is_no_whole_number_is_refused_in_every_resource_of_every_dialect() {
    let texts = ["-20", "-1E", "500m", "0.5", "1n", "twenty", "", " 20", "20%", "0x10", "10GB"];
    for dialect in Dialect::ALL {
        let names = dialect.identity_resources().iter().chain(dialect.measure_resources());
        for resource in names {
            for text in texts {
                assert_eq!(
                    refusal(dialect, resource, text),
                    format!(
                        "container main: {resource} is {text:?}; \
                         it must be a whole number, 0 or more"
                    )
                );
            }
        }
    }
}

#[test]
fn a_number_beyond_all_counting_is_too_much_and_not_no_number() {
    for dialect in Dialect::ALL {
        for resource in dialect.identity_resources() {
            for text in ["10E", "9223372036854775808", "1e30"] {
                assert_eq!(
                    refusal(dialect, resource, text),
                    format!(
                        "container main: {resource} is {text:?}, which is more than any node has; \
                         write a smaller number"
                    )
                );
            }
        }
    }
}

#[test]
fn a_huge_value_cannot_flood_the_sentence() {
    let text = "9".repeat(100_000);
    let sentence = refusal(Dialect::Nano, "nano-gpu/gpu-percent", &text);
    let shown = "9".repeat(64);
    assert_eq!(
        sentence,
        format!(
            "container main: nano-gpu/gpu-percent is \"{shown}…\", which is more than any node \
             has; write a smaller number"
        )
    );
}

#[test]
fn ten_to_the_eighteenth_is_more_than_any_node_has() {
    const MANY: &str = "1000000000000000000";
    let table = [
        (Dialect::Nano, "nano-gpu/gpu-percent", "it counts 100 a card"),
        (Dialect::Nano, "nano-gpu/gpu-memory", "it counts MiB of one card"),
        (Dialect::NanoIo, "nano-gpu.io/gpu-core", "it counts 100 a card"),
        (Dialect::NanoIo, "nano-gpu.io/gpu-memory", "it counts GiB of one card"),
        (Dialect::Elastic, "elasticgpu.io/gpu-core", "it counts 100 a card"),
        (Dialect::Elastic, "elasticgpu.io/gpu-memory", "it counts MiB of one card"),
        (Dialect::ElasticCom, "elasticgpu.com/gpu-memory", "it counts MiB of one card"),
        (Dialect::Tencent, "tencent.com/vcuda-core", "it counts 100 a card"),
        (Dialect::Tencent, "tencent.com/vcuda-memory", "it counts blocks of 256 MiB"),
        (Dialect::Inspur, "inspur.com/vcuda-memory", "it counts blocks of 256 MiB"),
        (Dialect::NvidiaVcuda, "nvidia.com/vcuda-memory", "it counts MiB"),
        (Dialect::Gpushare, "aliyun.com/gpu-mem", "it counts GiB of one card: write 10 for 10 GiB"),
        (Dialect::Hami, "nvidia.com/gpu", "it counts cards"),
        (Dialect::Hami, "nvidia.com/gpumem", "it counts MiB of each card"),
        (Dialect::VgpuManager, "nvidia.com/vgpu-memory", "it counts MiB of each card"),
    ];
    for (dialect, resource, hint) in table {
        assert_eq!(
            refusal(dialect, resource, MANY),
            format!(
                "container main: {resource} is {MANY:?}, which is more than any node has; {hint}"
            )
        );
    }
}

#[test]
fn ten_g_of_gpushare_is_not_ten_gigabytes() {
    assert_eq!(
        refusal(Dialect::Gpushare, "aliyun.com/gpu-mem", "10G"),
        "container main: aliyun.com/gpu-mem is \"10G\", which is more than any node has; \
         it counts GiB of one card: write 10 for 10 GiB"
    );
    let mebibytes = dialect::Settings {
        gpushare_unit: dialect::MemoryUnit::Mebibytes,
        ..dialect::Settings::default()
    };
    let draft = pod().app("main", &[("aliyun.com/gpu-mem", "10Gi")]);
    assert_eq!(
        draft.read_by(&mebibytes).unwrap_err().to_string(),
        "container main: aliyun.com/gpu-mem is \"10Gi\", which is more than any node has; \
         it counts MiB of one card: write 10240 for 10 GiB"
    );
}

#[test]
fn the_largest_request_that_is_read_and_the_smallest_that_is_refused() {
    let table = [
        ("nano-gpu/gpu-percent", "6400", "6500"),
        ("aliyun.com/gpu-mem", "16384", "16385"),
        ("elasticgpu.io/gpu-memory", "16777216", "16777217"),
        ("nvidia.com/gpu", "64", "65"),
    ];
    for (resource, most, more) in table {
        assert!(pod().app("main", &[(resource, most)]).read().notes.is_empty());
        let sentence = pod().app("main", &[(resource, more)]).refusal();
        assert!(sentence.contains("more than any node has"), "{sentence}");
    }
}
