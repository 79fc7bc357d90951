//! Each container gets its own, whatever starts beside it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::bed::{BIG, Bed, LOOKED, SMALL};
use crate::pods::{container, pod, simple};

#[tokio::test(flavor = "multi_thread")]
async fn forty_equal_pods_at_once() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(BIG).await?;
    let ns = bed.session.namespace("story-equal").await?;
    let inventory = bed.inventory(BIG).await?;
    let names: Vec<String> = (0..40).map(|n| format!("equal-{n}")).collect();
    let place = |n: usize, name: &str| {
        let id = inventory.devices[n % 8].id.clone();
        let placement = format!("v1;{BIG};main={id}:20%+8192Mi");
        let (bed, ns, pod) = (&bed, &ns, simple(name, 20));
        async move { bed.place(ns, &pod, BIG, Some(&placement)).await }
    };
    let all = names.iter().enumerate().map(|(n, name)| place(n, name));
    futures::future::try_join_all(all).await?;
    let session = bed.session.clone().patience(Duration::from_mins(5));
    for name in &names {
        session.running(&ns, name).await?;
        bed.got_its_own(&ns, name, "main", &inventory).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_and_sidecars() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-init").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = |card: usize| inventory.devices[card].id.to_string();
    let asks = |percent: u32| json!({"nano-gpu/gpu-percent": percent});
    let stay = "sleep 100000";
    let init = |name: &str, percent: u32| container(name, &asks(percent), "true");
    let mut sidecar = container("side", &asks(10), stay);
    sidecar["restartPolicy"] = json!("Always");
    let main = |percent: u32| container("main", &asks(percent), stay);
    let free = container("main", &json!({}), "sleep 100000");
    let part = |card: usize, percent: u64| format!("{}:{percent}%+{}Mi", id(card), percent * 153);
    // Init containers get other cards than the app, so that a mistake shows.
    let cases = [
        (
            "same",
            vec![init("a", 20)],
            main(20),
            format!("init:a={};main={}", part(0, 20), part(1, 20)),
        ),
        (
            "smaller",
            vec![init("a", 10)],
            main(20),
            format!("init:a={};main={}", part(1, 10), part(2, 20)),
        ),
        (
            "larger",
            vec![init("a", 20)],
            main(10),
            format!("init:a={};main={}", part(2, 20), part(3, 10)),
        ),
        (
            "two",
            vec![init("a", 10), init("b", 10)],
            main(10),
            format!("init:a={};init:b={};main={}", part(3, 10), part(0, 10), part(1, 10)),
        ),
        (
            "sidecar",
            vec![sidecar],
            main(10),
            format!("sidecar:side={};main={}", part(2, 10), part(3, 10)),
        ),
        ("init-only", vec![init("a", 10)], free, format!("init:a={}", part(0, 10))),
    ];
    for (name, init, main, placement) in &cases {
        let pod = pod(name, init, std::slice::from_ref(main));
        bed.place(&ns, &pod, SMALL, Some(&format!("v1;{SMALL};{placement}"))).await?;
    }
    for (name, init, _, placement) in &cases {
        bed.session.running(&ns, name).await?;
        for container in init.iter().filter_map(|c| c["name"].as_str()) {
            bed.got_its_own(&ns, name, container, &inventory).await?;
        }
        if placement.contains("main=") {
            bed.got_its_own(&ns, name, "main", &inventory).await?;
        } else {
            // It asks for none beside an init container that has one.
            let said = bed.said(&ns, name, "main").await?;
            let seen = said.lines().find(|line| line.starts_with("/dev/nvidia"));
            ensure!(seen.is_none(), "{name}: {seen:?}");
        }
    }
    Ok(())
}

/// For how many seconds pods end and start on a full node; more by `NANOGPU_CHURN_SECONDS`.
const CHURN: u64 = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_on_which_pods_end_and_start() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-churn").await?;
    let inventory = bed.inventory(SMALL).await?;
    // Four pods of a hundred tickets each: whoever comes gets the set that was given back.
    let place = |card: usize, name: String| {
        let placement = format!("v1;{SMALL};main={}:whole", inventory.devices[card].id);
        let (bed, ns) = (&bed, &ns);
        async move { bed.place(ns, &simple(&name, 100), SMALL, Some(&placement)).await }
    };
    for card in 0..4 {
        place(card, format!("round-{card}")).await?;
    }
    let seconds = std::env::var("NANOGPU_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(CHURN));
    let mut round = 0;
    let mut last = usize::MAX;
    while round < last {
        let name = format!("round-{round}");
        bed.session.running(&ns, &name).await?;
        bed.got_its_own(&ns, &name, "main", &inventory).await?;
        if last == usize::MAX && Instant::now() < end {
            bed.delete(&ns, &name).await?;
            bed.session.gone::<k8s_openapi::api::core::v1::Pod>(&ns, &name).await?;
            place(round % 4, format!("round-{}", round + 4)).await?;
        } else if last == usize::MAX {
            last = round + 4;
        }
        round += 1;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_that_restart_twenty_times() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-twenty").await?;
    let inventory = bed.inventory(SMALL).await?;
    // Each start is written down, and told by the last.
    let look = "{ echo start; stat -c '%n %t:%T' /dev/nvidia*; } >> /keep/starts";
    let until = "[ $(grep -c start /keep/starts) -gt 20 ] || exit 1; cat /keep/starts";
    for card in 0..4 {
        let mut main = container("main", &json!({"nano-gpu/gpu-percent": 50}), "");
        let command = format!("{look}; {until}; echo '{LOOKED}'; sleep 100000");
        main["command"] = json!(["sh", "-c", command]);
        main["volumeMounts"] = json!([{"name": "keep", "mountPath": "/keep"}]);
        let mut pod = pod(&format!("pod-{card}"), &[], &[main]);
        pod["spec"]["volumes"] = json!([{"name": "keep", "emptyDir": {}}]);
        let placement = format!("v1;{SMALL};main={}:50%+7000Mi", inventory.devices[card].id);
        bed.place(&ns, &pod, SMALL, Some(&placement)).await?;
    }
    let patient = bed.session.clone().patience(Duration::from_mins(4));
    for card in 0..4 {
        let name = format!("pod-{card}");
        let all = |said: &str| said.contains(LOOKED);
        let said = patient.says(&ns, &name, "main", all).await?;
        let starts: Vec<&str> = said.split("start\n").skip(1).collect();
        ensure!(starts.len() == 21, "{} starts", starts.len());
        let minor = inventory.devices[card].minor;
        let own = format!("/dev/nvidia{minor} c3:{minor:x}");
        for start in starts {
            let mut cards = start.lines().filter(|line| {
                line.strip_prefix("/dev/nvidia")
                    .is_some_and(|rest| rest.starts_with(char::is_numeric))
            });
            let (first, more) = (cards.next(), cards.next());
            ensure!(first == Some(own.as_str()) && more.is_none(), "{name} got {start}");
        }
    }
    Ok(())
}
