//! What a container gets: the whole content of its CDI spec, as a function.

use dialect::{Asked, NodeMode, visible_devices};
use gpu::{DriverFile, Node};
use kubelet::cdi::{ContainerEdits, DeviceNode, Mount};
use model::{Container, Device, DeviceId, Inventory, Placement, Pod};

use crate::refusal::Refusal;
use crate::rungs::{Given, Rung};
use crate::settings::Settings;

/// A container that is about to start, with everything known about it.
#[derive(Debug)]
pub struct Start<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What it asks, and in which dialect.
    pub asked: &'a Asked,
    /// The container.
    pub container: &'a Container,
    /// The pod's placement.
    pub placement: &'a Placement,
    /// The name of the kubelet's ID set.
    pub digest: &'a str,
    /// The container's pages, as the host sees them.
    pub pages: &'a str,
}

/// What the node has.
#[derive(Debug)]
pub struct Around<'a> {
    /// Its devices.
    pub inventory: &'a Inventory,
    /// The driver's libraries.
    pub driver: &'a [DriverFile],
    /// Device nodes that every container needs.
    pub common: &'a [Node],
}

/// What the container gets.
pub fn edits(
    settings: &Settings,
    around: &Around<'_>,
    start: &Start<'_>,
) -> Result<ContainerEdits, Refusal> {
    let Start { pod, asked, container, placement, digest, pages } = start;
    let grants = placement.grants(container.name.as_str());
    let lookup = |id: &DeviceId| -> Option<&Device> {
        around.inventory.devices.iter().find(|device| device.id == *id).map(|device| &**device)
    };
    let mut edits = ContainerEdits::default();
    let own = dialect::env(asked, pod, container, placement, &lookup, &settings.dialects, digest);
    let visible = visible_devices(settings.mode, grants);
    edits.env =
        [visible].into_iter().chain(own).map(|(name, value)| format!("{name}={value}")).collect();
    if settings.mode == NodeMode::Own {
        for grant in grants {
            let device = lookup(&grant.device)
                .ok_or_else(|| Refusal::NoSuchDevice { device: grant.device.clone() })?;
            edits.device_nodes.push(node(settings, &Node::card(device.minor)));
        }
        edits.device_nodes.extend(around.common.iter().map(|common| node(settings, common)));
        let given = Given {
            driver: around.driver,
            driver_root: &settings.driver,
            limiter: &settings.limiter,
            pages,
            grants,
        };
        settings.rung.for_grants(grants).equip(&given, &mut edits)?;
    } else if settings.rung.for_grants(grants) != Rung::None {
        // The genuine libraries would be mounted over ours.
        return Err(Refusal::NoLimitHere);
    }
    if let Some(folder) = &settings.vcuda
        && crate::vcuda::speaks(asked.dialect)
    {
        let host = folder.host.join(pod.id.uid.as_str()).display().to_string();
        edits.mounts.push(Mount::read_only(host, crate::vcuda::SEEN_AT));
    }
    for extra in &settings.extras {
        let (host, container) = (extra.host.display(), extra.container.display());
        edits.mounts.push(Mount::read_only(host.to_string(), container.to_string()));
    }
    Ok(edits)
}

fn node(settings: &Settings, node: &Node) -> DeviceNode {
    let path = format!("/dev/{}", node.name);
    let host = settings.dev.host.join(&node.name).display().to_string();
    let host_path = (host != path).then_some(host);
    DeviceNode { host_path, permissions: Some("rw".into()), ..DeviceNode::new(path) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::Profile;
    use model::codec::decode_placement;

    use super::*;
    use crate::settings::{Extra, Folder};
    use crate::tests::settings;

    const POD: &str = r#"{"metadata":{"name":"a","namespace":"team","uid":"u-1"},
        "spec":{"containers":[
          {"name":"main","resources":{"limits":{"nano-gpu/gpu-percent":"30"}}},
          {"name":"big","resources":{"limits":{"nano-gpu/gpu-percent":"200"}}}]}}"#;

    fn of(settings: &Settings, container: usize) -> Result<ContainerEdits, Refusal> {
        let pod = Pod::from_json(POD).unwrap();
        let asked = dialect::read(&pod, &settings.dialects).unwrap().unwrap();
        let text = "v1;n1;main=GPU-1:30%+4608Mi;big=GPU-2:whole,GPU-3:whole";
        let placement = decode_placement(text).unwrap();
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let driver: Vec<DriverFile> = [
            "libcuda.so.1",
            "libcuda.so.550.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
        ]
        .map(|name| DriverFile { name: name.into(), path: PathBuf::from("/drv/lib").join(name) })
        .into();
        let common = [Node { name: "nvidiactl".into(), common: true }];
        let around = Around { inventory: &inventory, driver: &driver, common: &common };
        let start = Start {
            pod: &pod,
            asked: &asked,
            container: &pod.containers[container],
            placement: &placement,
            digest: "0123",
            pages: "/pages/x",
        };
        edits(settings, &around, &start)
    }

    fn nodes(edits: &ContainerEdits) -> Vec<&str> {
        edits.device_nodes.iter().map(|node| node.path.as_str()).collect()
    }

    fn mounted<'a>(edits: &'a ContainerEdits, at: &str) -> Option<&'a str> {
        let mount = edits.mounts.iter().find(|mount| mount.container_path == at)?;
        Some(mount.host_path.as_str())
    }

    #[test]
    fn own_mode_gives_devices_libraries_and_the_dialects_env() {
        let got = of(&settings(), 0).unwrap();
        assert_eq!(nodes(&got), ["/dev/nvidia1", "/dev/nvidiactl"]);
        assert!(got.env.contains(&"NVIDIA_VISIBLE_DEVICES=void".to_owned()), "{:?}", got.env);
        assert!(got.env.contains(&"GPU=0123".to_owned()) && got.env.contains(&"ku=30".to_owned()));
        for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
            let at = format!("{folder}/libcuda.so.1");
            assert_eq!(mounted(&got, &at), Some("/drv/lib/libcuda.so.1"));
        }
    }

    #[test]
    fn the_limiter_stands_in_for_the_driver_and_its_pages_come_along() {
        let folder = tempfile::tempdir().unwrap();
        let limiter = Folder::same(folder.path());
        let settings = Settings { rung: Rung::Limiter, limiter, ..settings() };
        assert!(matches!(of(&settings, 0), Err(Refusal::NoLimiter { .. })), "fail closed");
        std::fs::write(folder.path().join("libnanogpu.so"), "x").unwrap();
        let got = of(&settings, 0).unwrap();
        let ours = folder.path().join("libnanogpu.so").display().to_string();
        assert_eq!(mounted(&got, "/usr/lib64/libcuda.so.1"), Some(ours.as_str()));
        assert_eq!(mounted(&got, "/usr/lib64/libnvidia-ml.so.1"), Some(ours.as_str()));
        assert_eq!(mounted(&got, "/usr/lib64/libcuda.so.550.1"), None, "no way around it");
        assert_eq!(
            mounted(&got, "/usr/local/nanogpu/driver/libcuda.so.1"),
            Some("/drv/lib/libcuda.so.1")
        );
        assert_eq!(mounted(&got, "/usr/local/nanogpu/pages/0.limits"), Some("/pages/x/0.limits"));
        assert_eq!(mounted(&got, "/usr/local/nanogpu/pages/0.door"), Some("/pages/x/0.door"));
        assert_eq!(mounted(&got, "/etc/ld.so.preload"), Some("/pages/x/ld.so.preload"));
        // What the file says is where the library is.
        assert_eq!(mounted(&got, crate::rungs::PRELOADED.trim_end()), Some(ours.as_str()));
        let options =
            |at: &str| &got.mounts.iter().find(|m| m.container_path == at).unwrap().options;
        assert!(options("/usr/local/nanogpu/pages/0.limits").contains(&"ro".to_owned()));
        assert!(options("/usr/local/nanogpu/pages/0.counters").contains(&"rw".to_owned()));
        assert_eq!(
            mounted(&got, "/usr/lib64/libnvidia-ptxjitcompiler.so.1"),
            Some("/drv/lib/libnvidia-ptxjitcompiler.so.1")
        );
    }

    #[test]
    fn whole_cards_are_left_alone() {
        let settings = Settings { rung: Rung::Limiter, ..settings() };
        let got = of(&settings, 1).unwrap();
        assert_eq!(nodes(&got), ["/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl"]);
        assert_eq!(mounted(&got, "/usr/lib64/libcuda.so.1"), Some("/drv/lib/libcuda.so.1"));
        assert!(!got.mounts.iter().any(|mount| mount.container_path.contains("nanogpu")));
    }

    #[test]
    fn toolkit_mode_names_the_cards_and_brings_nothing() {
        let settings = Settings { mode: NodeMode::Toolkit, ..settings() };
        for (container, cards) in [(0, "GPU-1"), (1, "GPU-2,GPU-3")] {
            let got = of(&settings, container).unwrap();
            assert!(got.env.contains(&format!("NVIDIA_VISIBLE_DEVICES={cards}")), "{:?}", got.env);
            assert!(got.device_nodes.is_empty() && got.mounts.is_empty());
        }
        // Where limits are asked for, only who needs none is served.
        let limited = Settings { rung: Rung::Limiter, ..settings };
        assert_eq!(of(&limited, 0), Err(Refusal::NoLimitHere));
        assert!(of(&limited, 1).is_ok());
    }

    #[test]
    fn device_nodes_and_extras_are_taken_from_where_the_host_has_them() {
        let settings = Settings {
            dev: "/host/dev=/var/lib/dev".parse().unwrap(),
            extras: vec!["/opt/x=/opt/y".parse::<Extra>().unwrap()],
            ..settings()
        };
        let got = of(&settings, 0).unwrap();
        assert_eq!(got.device_nodes[0].host_path.as_deref(), Some("/var/lib/dev/nvidia1"));
        assert_eq!(mounted(&got, "/opt/y"), Some("/opt/x"));
    }
}
