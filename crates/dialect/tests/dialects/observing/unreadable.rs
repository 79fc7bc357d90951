//! Annotations that cannot be understood: said, never guessed.

use crate::common::{Amounts, BEFORE, pod};
use crate::observing::{main, unreadable};

const NANO: Amounts = &[("nano-gpu/gpu-percent", "20")];
const TENCENT: Amounts = &[("tencent.com/vcuda-core", "100")];
const GPUSHARE: Amounts = &[("aliyun.com/gpu-mem", "2")];
const HAMI: Amounts = &[("nvidia.com/gpu", "1")];
const VGPU: Amounts = &[("nvidia.com/vgpu-number", "1")];
const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";

#[test]
fn lists_that_are_no_card_numbers() {
    for text in ["", "one", "1,", ",1", "1;2", "-2", "1.0", "4294967296", "0x1", "GPU-1"] {
        let why = |key: &str| format!("annotation {key} is {text:?}, not a list of cards");
        let nano = main(NANO).annotate("nano-gpu/assume", "true");
        let key = "nano-gpu/container-main";
        assert_eq!(unreadable(&nano.annotate(key, text)), why(key));
        let key = "tencent.com/predicate-gpu-idx-0";
        assert_eq!(unreadable(&main(TENCENT).annotate(key, text)), why(key));
        let key = "ALIYUN_COM_GPU_MEM_IDX";
        assert_eq!(unreadable(&main(GPUSHARE).annotate(key, text)), why(key));
    }
}

#[test]
fn a_key_that_is_missing() {
    let nano = main(NANO).annotate("nano-gpu/assume", "true");
    assert_eq!(unreadable(&nano), "annotation nano-gpu/container-main is missing");
    let tencent = main(TENCENT).annotate("tencent.com/predicate-time", "1");
    assert_eq!(unreadable(&tencent), "annotation tencent.com/predicate-gpu-idx-0 is missing");
}

#[test]
fn gpushare_s_json() {
    for text in ["", "{", "[]", r#"{"0":[1]}"#, r#"{"0":{"1":-2}}"#, r#"{"0":{"1":"2"}}"#] {
        let draft = main(GPUSHARE).annotate(ALLOCATION, text);
        assert_eq!(unreadable(&draft), format!("annotation {ALLOCATION} is not its JSON"));
    }
    for text in ["{}", r#"{"1":{"0":2}}"#, r#"{"0":{}}"#] {
        let draft = main(GPUSHARE).annotate(ALLOCATION, text);
        let why = format!("annotation {ALLOCATION} names no card for container main");
        assert_eq!(unreadable(&draft), why, "{text}");
    }
    let draft = main(GPUSHARE).annotate(ALLOCATION, r#"{"0":{"one":2}}"#);
    assert_eq!(
        unreadable(&draft),
        format!("annotation {ALLOCATION} is \"one\", not a list of cards")
    );
}

#[test]
fn hami_s_list() {
    const KEY: &str = "hami.io/vgpu-devices-allocated";
    let malformed = [
        "GPU-a",
        "GPU-a,NVIDIA",
        "GPU-a,NVIDIA,3000:;",
        "GPU-a,NVIDIA,many,0:;",
        "GPU-a,NVIDIA,3000,-1:;",
        "GPU-a,NVIDIA,3000,4294967296:;",
        ",NVIDIA,3000,0:;",
        "GPU a,NVIDIA,3000,0:;",
        // A field more than there are containers.
        "GPU-a,NVIDIA,3000,0:;GPU-a,NVIDIA,3000,0:;",
    ];
    for text in malformed {
        let why = format!("annotation {KEY} is malformed at {text:?}");
        assert_eq!(unreadable(&main(HAMI).annotate(KEY, text)), why);
    }
    for text in ["", ";", ":;"] {
        let why = format!("annotation {KEY} names no card for container main");
        assert_eq!(unreadable(&main(HAMI).annotate(KEY, text)), why, "{text:?}");
    }
}

#[test]
fn vgpu_manager_s_list() {
    const KEY: &str = "nvidia.com/pre-allocated";
    let malformed = [
        "main",
        "main[",
        "main[0_GPU-a_10_1024",
        "main[0_GPU-a_10]",
        "main[0_GPU-a_ten_1024]",
        "main[0__10_1024]",
        "main[0_GPU-a_10_1024];more",
        // A container the pod does not have, with a card.
        "main[0_GPU-a_10_1024];other[0_GPU-a_10_1024]",
    ];
    for text in malformed {
        for key in [KEY, "nvidia.com/real-allocated"] {
            let why = format!("annotation {key} is malformed at {text:?}");
            assert_eq!(unreadable(&main(VGPU).annotate(key, text)), why);
        }
    }
    for text in ["", ";", "main[]", "other[]"] {
        let why = format!("annotation {KEY} names no card for container main");
        assert_eq!(unreadable(&main(VGPU).annotate(KEY, text)), why, "{text:?}");
    }
}

#[test]
fn one_bad_container_makes_the_pod_unreadable() {
    let draft = pod().app("main", NANO).app("more", NANO).bound(BEFORE).annotate_all(&[
        ("nano-gpu/assume", "true"),
        ("nano-gpu/container-main", "1"),
        ("nano-gpu/container-more", "what"),
    ]);
    assert_eq!(
        unreadable(&draft),
        "annotation nano-gpu/container-more is \"what\", not a list of cards"
    );
}
