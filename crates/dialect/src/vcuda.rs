//! gpu-manager and gpu-admission: `<domain>/vcuda-core`, 100 a card, and `vcuda-memory`.
//!
//! A share needs both; whole cards need no memory and get all of it. The pod annotation
//! `<domain>/vcuda-core-limit` lets shares use more while the card is idle.

use model::ids::Quoted;
use model::{Claimed, Container, Cores, DeviceRef, Mebibytes, MemoryAsk, Part, Pod, Request, Role};

use crate::asking::{Ask, Percent, Speaks, half, memory, memory_ignored, percent, positive};
use crate::observing::{Seen, minors};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::writing::{EnvOf, Writer, Writing};

/// One vendor's spelling.
pub(crate) struct Vcuda {
    core: &'static [&'static str; 1],
    memory: &'static [&'static str; 1],
    unit: Mebibytes,
    memory_hint: &'static str,
    core_limit: &'static str,
    time: &'static str,
    node: &'static str,
    assigned: &'static str,
    index: &'static str,
    /// How an index points at a card: gpu-manager counts device nodes, gpu-admission the
    /// driver's order.
    points_at: PointsAt,
}

enum PointsAt {
    DeviceNode,
    DriverOrder,
}

macro_rules! vcuda {
    ($domain:literal, $unit:expr, $hint:literal, $points_at:expr) => {
        Vcuda {
            core: &[concat!($domain, "/vcuda-core")],
            memory: &[concat!($domain, "/vcuda-memory")],
            unit: $unit,
            memory_hint: $hint,
            core_limit: concat!($domain, "/vcuda-core-limit"),
            time: concat!($domain, "/predicate-time"),
            node: concat!($domain, "/predicate-node"),
            assigned: concat!($domain, "/gpu-assigned"),
            index: concat!($domain, "/predicate-gpu-idx-"),
            points_at: $points_at,
        }
    };
}

/// gpu-manager.
pub(crate) const TENCENT: Vcuda =
    vcuda!("tencent.com", Mebibytes(256), "it counts blocks of 256 MiB", PointsAt::DeviceNode);
/// gpu-manager as inspur ships it.
pub(crate) const INSPUR: Vcuda =
    vcuda!("inspur.com", Mebibytes(256), "it counts blocks of 256 MiB", PointsAt::DeviceNode);
/// gpu-admission.
pub(crate) const NVIDIA: Vcuda =
    vcuda!("nvidia.com", Mebibytes(1), "it counts MiB", PointsAt::DriverOrder);

/// Labels of gpu-admission's bind verb.
const BIND_TIME: &str = "tydic.io/bind-time";
const BIND_PHASE: &str = "tydic.io/bind-phase";

impl Speaks for Vcuda {
    fn identities(&self) -> &'static [&'static str] {
        self.core
    }

    fn measures(&self) -> &'static [&'static str] {
        self.memory
    }

    fn ask(
        &self,
        container: &Container,
        _settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let (&[core], &[mem]) = (self.core, self.memory);
        let cores = positive(container, core, notes)?;
        let units = positive(container, mem, notes)?;
        let Some(cores) = cores else {
            return if units.is_some() { Err(half(container, mem, core)) } else { Ok(None) };
        };
        Ok(Some(match (percent(container, core, cores)?, units) {
            (Percent::Whole(cards), None) => Ask::whole(cards),
            (Percent::Whole(cards), Some(_)) => {
                notes.push(memory_ignored(container, mem));
                Ask::whole(cards)
            }
            (Percent::Share(_), None) => return Err(half(container, core, mem)),
            (Percent::Share(cores), Some(units)) => {
                let exact = memory(container, mem, units, self.unit, self.memory_hint)?;
                Ask::share(1, cores, MemoryAsk::Exact(exact))
            }
        }))
    }

    fn pod_rules(
        &self,
        pod: &Pod,
        request: &mut Request,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let Some(text) = pod.annotations.get(self.core_limit) else { return Ok(()) };
        let refused = |must: String| Refusal::Annotation {
            key: self.core_limit.to_owned(),
            value: Quoted::new(text),
            must,
        };
        let whole = "a whole percentage, 1 to 100".to_owned();
        let mut limit = match text.trim().parse::<u32>() {
            Ok(limit) if limit > 0 => Cores(limit),
            _ => return Err(refused(whole)),
        };
        if limit > Cores::CARD {
            let key = self.core_limit;
            notes.push(format!("annotation {key} is {}; a card has 100, so 100 holds", limit.0));
            limit = Cores::CARD;
        }
        for container in &mut request.containers {
            let Part::Share { cores, .. } = container.part else { continue };
            if limit < cores {
                let name = &container.name;
                let must = format!("at least {}, which container {name} asks for", cores.0);
                return Err(refused(must));
            }
            container.burst = Some(limit);
        }
        Ok(())
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        let now = writing.now.0.to_string();
        out.annotate(self.time, &now);
        out.annotate(self.node, writing.placement.node().as_str());
        out.annotate(self.assigned, "false");
        let apps = writing.pod.containers.iter().filter(|c| c.role == Role::App);
        for container in apps {
            let cards = match self.points_at {
                PointsAt::DeviceNode => writing.minors(&container.name),
                PointsAt::DriverOrder => writing.indexes(&container.name),
            };
            if !cards.is_empty() {
                out.annotate(&format!("{}{}", self.index, container.position), &cards);
            }
        }
        if matches!(self.points_at, PointsAt::DriverOrder) {
            out.label(BIND_TIME, &now);
            out.label(BIND_PHASE, "allocating");
        }
    }

    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        self.early_env(0, of.ids_hash)
    }

    fn early_env(&self, _tickets: usize, _ids_hash: &str) -> Vec<(String, String)> {
        vec![("LD_LIBRARY_PATH".into(), "/usr/local/nvidia/lib64".into())]
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        let annotations = &seen.pod.annotations;
        let placed = annotations.keys().any(|key| key.starts_with(self.index));
        if !placed && !annotations.contains_key(self.time) {
            return None;
        }
        let apps = seen.pod.containers.iter().filter(|c| seen.must_hold(c));
        let claim = |container: &Container| {
            let key = format!("{}{}", self.index, container.position);
            let value =
                annotations.get(&key).ok_or_else(|| format!("annotation {key} is missing"))?;
            let point = match self.points_at {
                PointsAt::DeviceNode => DeviceRef::Minor,
                PointsAt::DriverOrder => DeviceRef::Index,
            };
            Ok(seen.claimed(container, minors(&key, value)?.into_iter().map(point)))
        };
        Some(apps.map(claim).collect())
    }
}
