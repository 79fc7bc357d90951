//! `nano-gpu/placement`, one line a person can read:
//!
//! ```text
//! v1;gpu-node-1;init:fetch=GPU-5f2e:whole;main=GPU-5f2e:30%+4915Mi,GPU-77aa:30%+4915Mi
//! ```
//!
//! Version; node (and `@` a deadline in nanoseconds since 1970, if it has one); then each
//! container with its devices in the order in which it will see them. A container is an app
//! container unless marked `init:` or `sidecar:`.

use std::fmt::Write;

use super::LARGEST;
use crate::ids::{ContainerName, DeviceId, NameError, NodeName, Quoted};
use crate::placement::{ContainerPlacement, Grant, Placement, PlacementError, Portion, Share};
use crate::request::Role;
use crate::units::{Cores, Mebibytes, UnixNanos};

const VERSION: &str = "v1";

/// Why a text is no placement. Whoever holds it must be taken to hold anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Larger than any annotation can be.
    #[error("placement is {0} bytes long; no annotation may exceed {LARGEST}")]
    TooLong(usize),
    /// Written by a newer nanogpu.
    #[error("placement has version {0}; this build reads {VERSION}: upgrade this component")]
    Version(Quoted),
    /// Something is missing or left over.
    #[error("placement is cut off or malformed at {0}")]
    Malformed(Quoted),
    /// A name that cannot be one.
    #[error("placement holds a bad name")]
    Name(#[from] NameError),
    /// Well-formed parts that make no placement.
    #[error("placement contradicts itself")]
    Contradiction(#[from] PlacementError),
}

/// Writes a placement as one line.
pub fn encode_placement(placement: &Placement) -> String {
    let mut text = format!("{VERSION};{}", placement.node());
    if let Some(until) = placement.until() {
        let _ = write!(text, "@{}", until.0);
    }
    for container in placement.containers() {
        let _ = write!(text, ";{}{}", mark(container.role), container.name);
        for (i, grant) in container.grants.iter().enumerate() {
            text.push(if i == 0 { '=' } else { ',' });
            let _ = match grant.portion {
                Portion::Whole => write!(text, "{}:whole", grant.device),
                Portion::Share(Share { cores, memory }) => {
                    write!(text, "{}:{}%+{}Mi", grant.device, cores.0, memory.0)
                }
            };
        }
    }
    text
}

/// Reads a placement.
pub fn decode_placement(text: &str) -> Result<Placement, DecodeError> {
    if text.len() > LARGEST {
        return Err(DecodeError::TooLong(text.len()));
    }
    let mut fields = text.split(';');
    let version = fields.next().unwrap_or_default();
    if version != VERSION {
        let numbered = version.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok());
        let quoted = Quoted::new(version);
        let error = if numbered { DecodeError::Version } else { DecodeError::Malformed };
        return Err(error(quoted));
    }
    let node = fields.next().ok_or_else(|| malformed(text))?;
    let (node, until) = match node.split_once('@') {
        Some((node, until)) => (node, Some(UnixNanos(number(until)?))),
        None => (node, None),
    };
    let node = NodeName::parse(node)?;
    let containers = fields.map(container).collect::<Result<_, _>>()?;
    let placement = Placement::new(node, containers)?;
    Ok(match until {
        Some(until) => placement.void_after(until),
        None => placement,
    })
}

const fn mark(role: Role) -> &'static str {
    match role {
        Role::Init => "init:",
        Role::Sidecar => "sidecar:",
        Role::App => "",
    }
}

fn container(field: &str) -> Result<ContainerPlacement, DecodeError> {
    let (head, grants) = field.split_once('=').ok_or_else(|| malformed(field))?;
    let marked = [Role::Init, Role::Sidecar]
        .into_iter()
        .find_map(|role| Some((role, head.strip_prefix(mark(role))?)));
    let (role, name) = marked.unwrap_or((Role::App, head));
    let name = ContainerName::parse(name)?;
    let grants = grants.split(',').map(grant).collect::<Result<_, _>>()?;
    Ok(ContainerPlacement { name, role, grants })
}

fn grant(text: &str) -> Result<Grant, DecodeError> {
    let (device, portion) = text.split_once(':').ok_or_else(|| malformed(text))?;
    let device = DeviceId::parse(device)?;
    if portion == "whole" {
        return Ok(Grant { device, portion: Portion::Whole });
    }
    let (cores, memory) = portion.split_once("%+").ok_or_else(|| malformed(text))?;
    let memory = memory.strip_suffix("Mi").ok_or_else(|| malformed(text))?;
    let share = Share { cores: Cores(number(cores)?), memory: Mebibytes(number(memory)?) };
    Ok(Grant { device, portion: Portion::Share(share) })
}

/// Digits only and no leading zero, so that every placement has exactly one spelling.
fn number<T: std::str::FromStr>(text: &str) -> Result<T, DecodeError> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let parsed = if plain { text.parse().ok() } else { None };
    parsed.ok_or_else(|| malformed(text))
}

fn malformed(text: &str) -> DecodeError {
    DecodeError::Malformed(Quoted::new(text))
}
