//! Nodes where NVIDIA's container toolkit brings the devices. The toolkit itself is not here: a
//! stand-in, which reads the same variable, takes the place of its container runtime.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bed::{Bed, SIM, SMALL, TOOLKIT};
use crate::limiting::limiter;
use crate::pods::{container, pod, simple, user, using};
use crate::processes::programs;

/// What asks for that runtime.
const CLASS: &str = r#"{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"}, "handler": "nvidia"}"#;
/// What ours would bring, by how it is mounted.
const OURS: [&str; 4] = ["/usr/local/nanogpu", "libnanogpu.so", "ld.so.preload", "/nanogpu/pages"];

/// Puts the stand-in onto the node, with what it must know of the cards: from the driver, not from us.
async fn install(bed: &Bed) -> Result<()> {
    let program = bed.cluster.layout().on_node(SMALL, TOOLKIT);
    let folder = program.parent().context("a folder")?;
    std::fs::create_dir_all(folder)?;
    std::fs::copy(programs()?.join("toolkit_stand_in"), &program)?;
    let shown = bed.simgpu(SMALL, &["show"])?;
    let card = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let uuid = words.last().filter(|word| word.starts_with("GPU-"))?;
        Some(((*uuid).to_owned(), words[0].parse().ok()?))
    };
    let cards: BTreeMap<String, u64> = shown.lines().filter_map(card).collect();
    ensure!(cards.len() == 4, "{shown}");
    let libraries = format!("{SIM}/driver/usr/lib/x86_64-linux-gnu");
    let machine = json!({"dev": format!("{SIM}/dev"), "libraries": libraries, "cards": cards});
    std::fs::write(folder.join("toolkit.json"), machine.to_string())?;
    bed.session.apply("default", CLASS).await.map(drop)
}

/// The same pod where that runtime runs it.
fn by_toolkit(mut pod: Value) -> Value {
    pod["spec"]["runtimeClassName"] = json!("nvidia");
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nvidias_toolkit_cards_are_named_and_nothing_of_ours_comes_along() -> Result<()> {
    let bed = Bed::new().await?;
    install(&bed).await?;
    let agent = bed.agent_with(SMALL, &["--mode", "toolkit"]).await?;
    let ns = bed.session.namespace("story-toolkit").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = |card: usize| inventory.devices[card].id.to_string();
    let (share, both) = (json!({"aliyun.com/gpu-mem": 3}), json!({"nano-gpu/gpu-percent": 200}));
    let loads = ["--device 0 --memory 256MiB", "--device 1 --memory 256MiB"];
    let cases = [
        ("share", &share, &loads[..1], format!("{}:0%+3072Mi", id(2)), id(2)),
        // In the placement's order, which need not be the driver's.
        (
            "whole",
            &both,
            &loads[..],
            format!("{}:whole,{}:whole", id(3), id(0)),
            format!("{},{}", id(3), id(0)),
        ),
    ];
    for (name, limits, loads, given, _) in &cases {
        let pod = by_toolkit(using(name, &user("debian", limits, loads)));
        bed.place(&ns, &pod, SMALL, Some(&format!("v1;{SMALL};main={given}"))).await?;
    }
    // Where no toolkit runs the container it is told the same, and has no card.
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", id(1));
    bed.place(&ns, &simple("bare", 10), SMALL, Some(&placement)).await?;
    for (name, _, _, _, visible) in &cases {
        bed.session.running(&ns, name).await?;
        let said = bed.said(&ns, name, "main").await?;
        names_only(name, &said, visible)?;
        bed.got_its_own(&ns, name, "main", &inventory).await?;
        bed.uses_its_own(&ns, name).await?;
    }
    let said = bed.said(&ns, "share", "main").await?;
    for (what, value) in [("IDX", 2), ("POD", 3), ("CONTAINER", 3), ("DEV", 15)] {
        let line = format!("ALIYUN_COM_GPU_MEM_{what}={value}");
        ensure!(said.lines().any(|one| one == line), "no {line} in {said}");
    }
    let said = bed.said(&ns, "whole", "main").await?;
    ensure!(said.lines().any(|line| line == "ku=200"), "{said}");
    let said = bed.said(&ns, "bare", "main").await?;
    names_only("bare", &said, &id(1))?;
    ensure!(!said.lines().any(|line| line.starts_with("/dev/nvidia")), "{said}");

    // Limits cannot be kept there. Who asks for them gets whole cards and no shares.
    drop(agent);
    let library = limiter(&bed, SMALL)?;
    let limited = ["--mode", "toolkit", "--isolation", "limiter", "--limiter", &library];
    let agent = bed.agent_with(SMALL, &limited).await?;
    bed.delete(&ns, "whole").await?;
    bed.place(&ns, &simple("no-limit", 10), SMALL, Some(&placement)).await?;
    let main = container("main", &json!({"nano-gpu/gpu-percent": 100}), "sleep 100000");
    let all = format!("v1;{SMALL};main={}:whole", id(3));
    bed.place(&ns, &by_toolkit(pod("all", &[], &[main])), SMALL, Some(&all)).await?;
    bed.told(&ns, "no-limit", "a share cannot be limited").await?;
    bed.session.running(&ns, "all").await?;
    bed.got_its_own(&ns, "all", "main", &inventory).await?;

    // In our own mode that runtime is told to add nothing, and the limiter stays where it is.
    drop(agent);
    let own = ["--isolation", "limiter", "--limiter", &library];
    let _agent = bed.agent_with(SMALL, &own).await?;
    let limits = json!({"nano-gpu/gpu-percent": 30});
    let greedy = by_toolkit(using("own", &user("debian", &limits, &["--memory 6GiB"])));
    let placement = format!("v1;{SMALL};main={}:30%+4096Mi", id(0));
    bed.place(&ns, &greedy, SMALL, Some(&placement)).await?;
    let denied = |said: &str| said.contains("out of memory (CUDA error 2)");
    let said = bed.session.says(&ns, "own", "main", denied).await?;
    ensure!(said.lines().any(|line| line == "NVIDIA_VISIBLE_DEVICES=void"), "{said}");
    let over =
        said.lines().filter(|line| line.contains(" /usr/lib/x86_64-linux-gnu/libcuda.so.1 "));
    let over: Vec<&str> = over.collect();
    ensure!(over.len() == 1 && over[0].contains("libnanogpu.so"), "{over:?}");
    Ok(())
}

/// The container is told these cards, once, and has nothing of ours.
fn names_only(name: &str, said: &str, visible: &str) -> Result<()> {
    let told = said.lines().filter(|line| line.starts_with("NVIDIA_VISIBLE_DEVICES="));
    let told: Vec<&str> = told.collect();
    ensure!(told == [format!("NVIDIA_VISIBLE_DEVICES={visible}")], "{name}: {told:?}");
    let ours = said.lines().find(|line| OURS.iter().any(|it| line.contains(it)));
    ensure!(ours.is_none(), "{name}: {ours:?}");
    Ok(())
}
