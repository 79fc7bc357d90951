//! The two annotations: what is written can be read, and what cannot be read says why.

use model::arb::{inventories, placements};
use model::codec::{decode_inventory, decode_placement, encode_inventory, encode_placement};
use proptest::prelude::*;

proptest! {
    #[test]
    fn placements_round_trip(placement in placements()) {
        let text = encode_placement(&placement);
        prop_assert_eq!(decode_placement(&text).unwrap(), placement);
    }

    #[test]
    fn inventories_round_trip(inventory in inventories()) {
        let text = encode_inventory(&inventory);
        prop_assert_eq!(decode_inventory(&text).unwrap(), inventory);
    }

    /// Cut anywhere, a placement is refused or means fewer containers, never another card.
    #[test]
    fn a_cut_placement_invents_nothing(placement in placements(), at in 0usize..300) {
        let text = encode_placement(&placement);
        let Some(cut) = text.get(..at.min(text.len())) else { return Ok(()) };
        if let Ok(read) = decode_placement(cut) {
            prop_assert_eq!(read.node(), placement.node());
            for (read, written) in read.containers().iter().zip(placement.containers()) {
                for (read, written) in read.grants.iter().zip(&written.grants) {
                    prop_assert_eq!(&read.portion, &written.portion);
                }
            }
        }
    }
}

#[test]
fn a_placement_is_one_readable_line() {
    let text = "v1;gpu-node-1;init:fetch=GPU-5f2e:whole;main=GPU-5f2e:30%+4915Mi,GPU-77aa:0%+1Mi";
    let placement = decode_placement(text).unwrap();
    assert_eq!(placement.node().as_str(), "gpu-node-1");
    assert_eq!(placement.grants("main").len(), 2);
    assert_eq!(encode_placement(&placement), text);
}

#[test]
fn bad_placements_say_why() {
    let table = [
        ("", "placement is cut off or malformed at \"\""),
        ("v1", "placement is cut off or malformed at \"v1\""),
        (
            "v2;a;c=GPU-1:whole",
            "placement has version \"v2\"; this build reads v1: upgrade this component",
        ),
        ("v1;gpu-1", "placement contradicts itself: no container has a device"),
        ("v1;gpu-1;main", "placement is cut off or malformed at \"main\""),
        ("v1;gpu-1;main=", "placement is cut off or malformed at \"\""),
        ("v1;gpu-1;main=GPU-1", "placement is cut off or malformed at \"GPU-1\""),
        ("v1;gpu-1;main=GPU-1:30%+49", "placement is cut off or malformed at \"GPU-1:30%+49\""),
        ("v1;gpu-1;main=GPU-1:-3%+49Mi", "placement is cut off or malformed at \"-3\""),
        ("v1;gpu-1;main=GPU-1:030%+49Mi", "placement is cut off or malformed at \"030\""),
        (
            "v1;gpu-1;main=GPU-1:whole,GPU-1:whole",
            "placement contradicts itself: container main has device GPU-1 twice",
        ),
        (
            "v1;gpu-1;a=GPU-1:whole;a=GPU-2:whole",
            "placement contradicts itself: container a stands there twice",
        ),
        (
            "v1;gpu-1;a=GPU-1:whole;init:b=GPU-2:whole",
            "placement contradicts itself: container b starts before the pod's work but stands behind it",
        ),
        (
            "v1;Gpu;a=GPU-1:whole",
            "placement holds a bad name: \"Gpu\" is not a node name: a DNS name of at most 253 \
          lower-case letters, digits, '-' and '.'",
        ),
    ];
    for (text, expected) in table {
        let error = decode_placement(text).unwrap_err();
        assert_eq!(chain(&error), expected, "{text}");
    }
    let huge = format!("v1;a;{}", "c".repeat(300 * 1024));
    let error = decode_placement(&huge).unwrap_err().to_string();
    assert_eq!(error, "placement is 307205 bytes long; no annotation may exceed 262144");
}

#[test]
fn bad_inventories_say_why() {
    let one = |id: &str, index: u32, more: &str| {
        format!(r#"{{"id":"{id}","index":{index},"minor":0,"model":"T4","mem":100{more}}}"#)
    };
    let of = |devices: &[String], links: &str| {
        format!(r#"{{"v":1,"devices":[{}],"links":{{{links}}}}}"#, devices.join(","))
    };
    let link = |text: &str| {
        format!(
            "inventory has a link \"{text}\" that is not between two of its devices or not of a \
             known kind"
        )
    };
    let two = [one("GPU-1", 0, ""), one("GPU-2", 1, "")];
    let table = [
        (
            of(&[one("GPU-1", 0, ""), one("GPU-1", 1, "")], ""),
            "inventory lists device GPU-1 twice".into(),
        ),
        (
            of(&[one("GPU-1", 0, ""), one("GPU-2", 0, "")], ""),
            "inventory lists index 0 twice".into(),
        ),
        (of(&two, r#""PIX":"0-2""#), link("0-2")),
        (of(&two, r#""PIX":"1-0""#), link("1-0")),
        (of(&two, r#""PIX":"0""#), link("0")),
        (of(&two, r#""WARP":"0-1""#), link("WARP")),
        (of(&two, r#""PIX":"0-1","SYS":"0-1""#), "inventory lists link 0-1 twice".into()),
        (
            of(&[one("GPU-1", 0, r#","cores":0"#)], ""),
            "device GPU-1 has 0% compute, which no card has".into(),
        ),
        (
            of(&[one("GPU-1", 0, r#","nic":"NV1""#)], ""),
            "inventory is not the JSON it should be".into(),
        ),
        (
            r#"{"v":2,"devices":7}"#.into(),
            "inventory has version 2; this build reads version 1: upgrade this component"
                .to_owned(),
        ),
        (
            of(&(0..65).map(|i| one(&format!("GPU-{i}"), i, "")).collect::<Vec<_>>(), ""),
            "inventory lists 65 devices; a node may have at most 64".into(),
        ),
        (
            " ".repeat(300 * 1024),
            "inventory is 307200 bytes long; no annotation may exceed 262144".into(),
        ),
    ];
    for (text, expected) in table {
        let error = decode_inventory(&text).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text:.200}");
    }
    let whole = of(&two, r#""PXB+NV12":"0-1""#);
    assert_eq!(decode_inventory(&whole).unwrap().links[0].nvlinks, 12);
    let near = of(&[one("GPU-1", 0, r#","nic":"PXB""#)], "");
    assert_eq!(decode_inventory(&near).unwrap().devices[0].nic, Some(model::Hop::Switches));
    for at in 0..whole.len() {
        let error = decode_inventory(&whole[..at]).unwrap_err().to_string();
        assert_eq!(error, "inventory is not the JSON it should be", "cut at {at}");
    }
}

#[test]
fn fields_of_tomorrow_are_skipped_within_a_version() {
    let text = r#"{"v":1,"devices":[{"id":"GPU-1","index":0,"minor":3,"model":"T4","mem":9,"new":[]}],"more":1}"#;
    assert_eq!(decode_inventory(text).unwrap().devices[0].minor, 3);
}

fn chain(error: &dyn std::error::Error) -> String {
    let source = error.source().map(|source| format!(": {}", chain(source)));
    format!("{error}{}", source.unwrap_or_default())
}
