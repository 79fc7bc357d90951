//! The machines we know, and texts that are none.

use model::Hop::{CrossSocket, HostBridge, OneSwitch, SameNode, Switches};
use model::codec::{decode_inventory, encode_inventory};
use model::profiles::{Matrix, Profile, ProfileError, names};
use model::{Bytes, Hop, Inventory, Link, Mebibytes, MilliCpu};
use proptest::prelude::*;

fn inventory(name: &str) -> Inventory {
    Profile::named(name).expect("a machine").inventory("GPU").expect("a prefix")
}

fn link(inventory: &Inventory, a: u32, b: u32) -> (Hop, u8) {
    let found = inventory.links.iter().find(|link| (link.a, link.b) == (a, b));
    let Link { hop, nvlinks, .. } = found.expect("a link");
    (*hop, *nvlinks)
}

#[test]
fn every_machine_has_all_its_links_and_can_be_reported() {
    // Cards, and how many NVLinks there are in all.
    let table = [
        ("dgx-1v", 8, 24),
        ("dgx-2", 16, 720),
        ("dgx-a100", 8, 336),
        ("hgx-a100-2nic", 8, 336),
        ("hgx-a100-4", 4, 24),
        ("dgx-h100", 8, 504),
        ("hgx-h100", 8, 504),
        ("hgx-b200", 8, 504),
        ("hgx-b300", 8, 504),
        ("hgx-b200-degraded", 8, 378),
        ("rtx4090x8", 8, 0),
        ("pcie-x8", 8, 0),
        ("t4x8", 8, 0),
        ("l4x8", 8, 0),
        ("a10x8", 8, 0),
        ("pcie-x4", 4, 0),
        ("l40sx4", 4, 0),
        ("t4x4", 4, 0),
        ("a10x4", 4, 0),
        ("vm-x4", 4, 0),
        ("bridge-x4", 4, 4),
        ("rtx8000x4", 4, 4),
        ("hgx-a800", 8, 224),
    ];
    assert_eq!(names().collect::<Vec<_>>(), table.map(|(name, ..)| name));
    for (name, cards, nvlinks) in table {
        let inventory = inventory(name);
        assert_eq!(inventory.devices.len(), cards, "{name}");
        assert_eq!(inventory.links.len(), cards * (cards - 1) / 2, "{name}");
        let total: u32 = inventory.links.iter().map(|link| u32::from(link.nvlinks)).sum();
        assert_eq!(total, nvlinks, "{name}");
        assert!(inventory.devices.iter().all(|device| device.numa.is_some()), "{name}");
        let text = encode_inventory(&inventory);
        assert_eq!(decode_inventory(&text).unwrap(), inventory, "{name}");
    }
}

#[test]
fn links_are_those_of_the_matrix_and_of_what_it_hides() {
    let table = [
        // Beneath NVLinks: the switches and host bridges that are known of this one.
        ("dgx-1v", (0, 1), (OneSwitch, 1)),
        ("dgx-1v", (0, 3), (HostBridge, 2)),
        ("dgx-1v", (0, 4), (CrossSocket, 2)),
        ("dgx-1v", (0, 5), (CrossSocket, 0)),
        // Beneath NVLinks: the NUMA nodes.
        ("dgx-2", (0, 7), (SameNode, 6)),
        ("dgx-2", (7, 8), (CrossSocket, 6)),
        ("dgx-a100", (2, 3), (SameNode, 12)),
        ("dgx-a100", (1, 2), (CrossSocket, 12)),
        ("hgx-a100-4", (0, 1), (CrossSocket, 4)),
        ("hgx-b200-degraded", (1, 2), (SameNode, 0)),
        ("hgx-b200-degraded", (2, 4), (CrossSocket, 0)),
        ("rtx4090x8", (0, 1), (CrossSocket, 0)),
        ("pcie-x8", (6, 7), (OneSwitch, 0)),
        ("pcie-x8", (1, 2), (HostBridge, 0)),
        ("pcie-x4", (2, 3), (SameNode, 0)),
        ("vm-x4", (0, 3), (HostBridge, 0)),
        ("bridge-x4", (0, 3), (CrossSocket, 2)),
        ("bridge-x4", (0, 1), (SameNode, 0)),
        ("hgx-a800", (3, 4), (CrossSocket, 8)),
    ];
    for (name, (a, b), expected) in table {
        assert_eq!(link(&inventory(name), a, b), expected, "{name} {a}-{b}");
    }
}

#[test]
fn numa_nodes_and_network_cards_are_those_of_the_matrix() {
    let of = |name: &str| -> Vec<(Option<u32>, Option<Hop>)> {
        inventory(name).devices.iter().map(|device| (device.numa, device.nic)).collect()
    };
    let numa = |name| of(name).into_iter().map(|(numa, _)| numa.unwrap()).collect::<Vec<_>>();
    let nic = |name| of(name).into_iter().map(|(_, nic)| nic).collect::<Vec<_>>();
    // From the CPUs, as it has no column for NUMA.
    assert_eq!(numa("dgx-1v"), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(numa("dgx-a100"), [3, 3, 1, 1, 7, 7, 5, 5]);
    assert_eq!(numa("hgx-a100-4"), [3, 2, 1, 0]);
    assert_eq!(numa("bridge-x4"), [0, 0, 1, 1]);
    assert_eq!(nic("dgx-1v"), [Some(OneSwitch); 8]);
    assert_eq!(nic("dgx-h100"), [Some(Switches); 8]);
    let far = [Switches, Switches, SameNode, SameNode];
    assert_eq!(nic("hgx-a100-2nic"), [far, far].concat().into_iter().map(Some).collect::<Vec<_>>());
    assert_eq!(nic("rtx4090x8")[5..], [Some(CrossSocket), Some(HostBridge), Some(CrossSocket)]);
    assert_eq!(nic("vm-x4"), [None; 4]);
}

#[test]
fn a_shape_is_sold_with_several_cards() {
    let profile = Profile::named("a10x8").unwrap();
    assert_eq!(
        (profile.model.to_string(), profile.memory),
        ("NVIDIA A10".into(), Mebibytes(23028))
    );
    assert_eq!(profile.matrix, Profile::named("t4x8").unwrap().matrix);
    let profile = Profile::named("dgx-1v").unwrap();
    assert_eq!(profile.cpu, Some(MilliCpu(80_000)));
    assert_eq!(profile.host_memory, Some(Bytes(512 << 30)));
    assert_eq!(Profile::named("bridge-x4").unwrap().cpu, None);
}

#[test]
fn bad_names_and_texts_say_why() {
    let unknown = Profile::named("dgx-9").unwrap_err();
    assert_eq!(unknown.to_string(), "no machine is called \"dgx-9\"");
    assert!(matches!(unknown, ProfileError::Unknown(_)));
    assert!(Profile::named("vm-x4").unwrap().inventory("no device id").is_err());
    let table = [
        ("", "matrix names no card in its first line"),
        ("\tmlx5_0\nmlx5_0\tX\n", "matrix names no card in its first line"),
        (
            "\tGPU1\nGPU1\tX\n",
            "matrix has a column \"GPU1\"; cards are numbered from GPU0 up to GPU63",
        ),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\n", "matrix has not one row for GPU1"),
        ("\tGPU0\nGPU0\tX\nGPU0\tX\n", "matrix has not one row for GPU0"),
        ("\tGPU0\nGPU0\tX\nGPU7\tX\n", "matrix has not one row for GPU7"),
        ("\tGPU0\nGPU0\tPIX\n", "matrix has \"PIX\" between \"GPU0\" and \"GPU0\""),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV0\n", "matrix has \"NV0\" between \"GPU0\" and \"GPU1\""),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV256\n", "matrix has \"NV256\" between \"GPU0\" and \"GPU1\""),
        ("\tGPU0\tGPU1\nGPU0\tX\n", "matrix has \"\" between \"GPU0\" and \"GPU1\""),
        ("\tGPU0\tmlx5_0\nGPU0\tX\tX\n", "matrix has \"X\" between \"GPU0\" and \"mlx5_0\""),
        (
            "\tGPU0\tNUMA Affinity\nGPU0\tX\tone\n",
            "matrix has \"one\" between \"GPU0\" and \"NUMA Affinity\"",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tNV1\tX\n",
            "matrix says different things of GPU0 and GPU1 than of GPU1 and GPU0",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(Matrix::parse(text).unwrap_err().to_string(), expected, "{text:?}");
    }
}

#[test]
fn what_stands_around_the_matrix_is_no_matter() {
    let text = "# a note\n\n\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\
                GPU0\t X \tSOC\t0-9\t1\tN/A\nGPU1\tSOC\t X \t0-9\tN/A\tN/A\n\nLegend:\n\n  X = Self\n";
    let matrix = Matrix::parse(text).unwrap();
    assert_eq!((matrix.count(), matrix.numa(0), matrix.numa(1)), (2, Some(1), None));
    assert_eq!(matrix.cell(0, 1), Some(model::profiles::Cell::Pcie(CrossSocket)));
    assert_eq!((matrix.cell(0, 0), matrix.cell(0, 9), matrix.nic(0)), (None, None, None));
}

proptest! {
    /// Whatever is cut from a matrix or put into it, reading it ends without a panic.
    #[test]
    fn no_text_is_too_bad(which in 0usize..16, at in 0usize..2000, len in 0usize..40, with in "[\\tGPU0-9NVX\\n# ]{0,12}") {
        let files = ["dgx-1v.txt", "bridge-x4.txt", "pcie-x4.txt", "hgx-a800.txt"];
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/profiles/");
        let mut text = std::fs::read_to_string(format!("{folder}{}", files[which % 4])).unwrap();
        let at = at.min(text.len());
        text.replace_range(at..(at + len).min(text.len()), &with);
        let _ = Matrix::parse(&text);
    }

    #[test]
    fn no_noise_is_too_bad(text in ".{0,200}") {
        let _ = Matrix::parse(&text);
    }
}
