//! gpu-manager and gpu-admission: a key for each container's position.

use crate::common::{cards, env, map};
use crate::writing::{four, four_placed, written};

const PLACEMENT: &str = "v1;gpu-1;init:fetch=GPU-2:20%+2048Mi;main=GPU-1:20%+2048Mi;\
                         pair=GPU-3:whole,GPU-0:whole";

#[test]
fn gpu_manager_reads_device_nodes() {
    for domain in ["tencent.com", "inspur.com"] {
        let name = |name: &str| format!("{domain}/{name}");
        let (core, memory) = (name("vcuda-core"), name("vcuda-memory"));
        let draft = four(&[(&core, "20"), (&memory, "8")], &[(&core, "200")]);
        let written = written(&draft, &four_placed(20, 2048));
        let annotations = map(&[
            ("nano-gpu/placement", PLACEMENT),
            (&name("predicate-time"), "1780000000123456789"),
            (&name("predicate-node"), "gpu-1"),
            (&name("gpu-assigned"), "false"),
            // By the place among app containers: `idle` is the second and has none.
            (&name("predicate-gpu-idx-0"), "6"),
            (&name("predicate-gpu-idx-2"), "4,7"),
        ]);
        assert_eq!(written.annotations, annotations, "{domain}");
        assert_eq!(written.labels, map(&[]));
    }
}

#[test]
fn gpu_admission_reads_places_in_the_driver_s_order() {
    let share = [("nvidia.com/vcuda-core", "20"), ("nvidia.com/vcuda-memory", "2048")];
    let draft = four(&share, &[("nvidia.com/vcuda-core", "200")]);
    let written = written(&draft, &four_placed(20, 2048));
    let annotations = map(&[
        ("nano-gpu/placement", PLACEMENT),
        ("nvidia.com/predicate-time", "1780000000123456789"),
        ("nvidia.com/predicate-node", "gpu-1"),
        ("nvidia.com/gpu-assigned", "false"),
        ("nvidia.com/predicate-gpu-idx-0", "1"),
        ("nvidia.com/predicate-gpu-idx-2", "3,0"),
    ]);
    assert_eq!(written.annotations, annotations);
    let labels = map(&[
        ("tydic.io/bind-time", "1780000000123456789"),
        ("tydic.io/bind-phase", "allocating"),
    ]);
    assert_eq!(written.labels, labels);
}

#[test]
fn containers_find_the_driver_s_library() {
    for domain in ["tencent.com", "inspur.com", "nvidia.com"] {
        let (core, memory) = (format!("{domain}/vcuda-core"), format!("{domain}/vcuda-memory"));
        let draft = four(&[(&core, "20"), (&memory, "8")], &[(&core, "200")]);
        let env = env(&draft, "main", &four_placed(20, 2048), &cards());
        assert_eq!(env, map(&[("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")]));
    }
}
