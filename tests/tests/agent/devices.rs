//! What a container got, from inside, in every dialect.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::bed::{BIG, Bed, SMALL};
use crate::pods::{container, pod};

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_every_dialect_get_what_their_placement_says() -> Result<()> {
    let bed = Bed::new().await?;
    let _agents = (bed.agent(BIG).await?, bed.agent(SMALL).await?);
    let ns = bed.session.namespace("story-dialects").await?;
    // Name, node, what it asks, its part of which card, an environment variable it expects.
    let cases = [
        ("nano", BIG, json!({"nano-gpu/gpu-percent": 30}), (5, "30%+12288Mi"), "ku=30"),
        ("whole", BIG, json!({"nano-gpu/gpu-percent": 100}), (6, "whole"), "ku=100"),
        (
            "tencent",
            SMALL,
            json!({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 8}),
            (2, "20%+2048Mi"),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
        ),
        (
            "inspur",
            SMALL,
            json!({"inspur.com/vcuda-core": 20, "inspur.com/vcuda-memory": 8}),
            (1, "20%+2048Mi"),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
        ),
        (
            "vcuda",
            BIG,
            json!({"nvidia.com/vcuda-core": 20, "nvidia.com/vcuda-memory": 2000}),
            (1, "20%+2000Mi"),
            "NVIDIA_VISIBLE_DEVICES=void",
        ),
        (
            "aliyun",
            SMALL,
            json!({"aliyun.com/gpu-mem": 3}),
            (3, "0%+3072Mi"),
            "ALIYUN_COM_GPU_MEM_CONTAINER=3",
        ),
        ("elastic", BIG, json!({"elasticgpu.io/gpu-core": 40}), (0, "40%+16384Mi"), "GPU="),
        (
            "first",
            SMALL,
            json!({"nano-gpu.io/gpu-core": 50}),
            (0, "50%+7680Mi"),
            "NVIDIA_VISIBLE_DEVICES=void",
        ),
    ];
    for (name, node, limits, (card, part), _) in &cases {
        let inventory = bed.inventory(node).await?;
        let id = &inventory.devices[*card].id;
        let placement = format!("v1;{node};main={id}:{part}");
        let pod = pod(name, &[], &[container("main", limits, "sleep 100000")]);
        bed.place(&ns, &pod, node, Some(&placement)).await?;
    }
    for (name, node, _, _, variable) in &cases {
        bed.session.running(&ns, name).await?;
        let inventory = bed.inventory(node).await?;
        bed.got_its_own(&ns, name, "main", &inventory).await?;
        let said = bed.said(&ns, name, "main").await?;
        ensure!(
            said.lines().any(|line| line.starts_with(variable)),
            "{name}: no {variable} in {said}"
        );
        if *name == "aliyun" {
            // As programs of that system read them: 3 GiB of a card of 15, the fourth of the node.
            for (what, value) in [("IDX", 3), ("POD", 3), ("CONTAINER", 3), ("DEV", 15)] {
                let line = format!("ALIYUN_COM_GPU_MEM_{what}={value}");
                ensure!(said.lines().any(|one| one == line), "{name}: no {line} in {said}");
            }
        }
        for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
            for library in ["libnvidia-ml.so.1", "libcuda.so.1"] {
                let mounted = format!(" {folder}/{library} ro");
                ensure!(said.contains(&mounted), "{name}: no{mounted} in {said}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_what_it_has() -> Result<()> {
    let bed = Bed::new().await?;
    let _agents = (bed.agent(BIG).await?, bed.agent(SMALL).await?);
    let big = bed.inventory(BIG).await?;
    ensure!(big.devices.len() == 8 && big.devices[0].model.0.contains("A100"));
    ensure!(big.links.iter().all(|link| link.nvlinks > 0), "{:?}", big.links);
    for (node, resource, amount) in [
        (BIG, "tencent.com/vcuda-core", 800),
        (BIG, "tencent.com/vcuda-memory", 8 * 40960 / 256),
        (BIG, "aliyun.com/gpu-mem", 8 * 40),
        (BIG, "aliyun.com/gpu-count", 8),
        (SMALL, "nvidia.com/vcuda-core", 400),
        (SMALL, "nvidia.com/vcuda-memory", 4 * 15360),
        (SMALL, "elasticgpu.io/gpu-core", 400),
    ] {
        bed.offered(node, resource, amount).await?;
    }
    Ok(())
}
