//! A stand-in for NVIDIA's container runtime, which cannot be had where there is no GPU: an OCI runtime
//! that does to a container what `NVIDIA_VISIBLE_DEVICES` says, as NVIDIA documents it, and is runc
//! otherwise. What it knows of the machine is in `toolkit.json` beside it.
//!
//! | value | does |
//! |---|---|
//! | not set, empty, `void` | what runc does, and nothing else |
//! | `none` | the driver's libraries, and no card |
//! | `all`, or UUIDs or places with commas between | those cards and the driver's libraries |

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Where programs of a Debian look for libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// The nodes that come with any card.
const COMMON: [&str; 2] = ["nvidiactl", "nvidia-uvm"];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "create") {
        let bundle = words.iter().skip_while(|word| *word != "--bundle").nth(1);
        let file = Path::new(bundle.map_or(".", String::as_str)).join("config.json");
        let mut spec = serde_json::from_slice(&fs::read(&file)?)?;
        if let Some(wanted) = wanted(&spec) {
            add(&mut spec, &wanted, &Machine::beside_us()?)?;
            fs::write(&file, serde_json::to_vec(&spec)?)?;
        }
    }
    Err(Command::new("runc").args(words).exec().into())
}

/// What the machine has.
struct Machine {
    /// The folder of device nodes.
    dev: PathBuf,
    /// The folder of libraries.
    libraries: PathBuf,
    /// The numbers of the cards' device nodes, by UUID.
    cards: BTreeMap<String, u64>,
}

impl Machine {
    fn beside_us() -> Result<Self> {
        let file = std::env::current_exe()?.with_file_name("toolkit.json");
        let said: Value = serde_json::from_slice(&fs::read(file)?)?;
        let path = |key: &str| said[key].as_str().map(PathBuf::from).ok_or("no such folder");
        let cards = said["cards"].as_object().ok_or("no cards")?;
        let card = |(uuid, minor): (&String, &Value)| Some((uuid.clone(), minor.as_u64()?));
        let cards = cards.iter().filter_map(card).collect();
        Ok(Self { dev: path("dev")?, libraries: path("libraries")?, cards })
    }
}

/// The value of the variable, if it asks for anything.
fn wanted(spec: &Value) -> Option<String> {
    let env = spec["process"]["env"].as_array()?.iter().filter_map(Value::as_str);
    // Of a name that is set twice the last one counts.
    let value = env.filter_map(|line| line.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).next_back()?;
    (!value.is_empty() && value != "void").then(|| value.to_owned())
}

fn add(spec: &mut Value, wanted: &str, machine: &Machine) -> Result<()> {
    let minors: Vec<u64> = match wanted {
        "none" => Vec::new(),
        "all" => machine.cards.values().copied().collect(),
        list => list.split(',').map(|one| card(one, machine)).collect::<Result<_>>()?,
    };
    let cards = minors.iter().map(|minor| format!("nvidia{minor}"));
    let common = COMMON.iter().map(|name| (*name).to_owned()).filter(|_| !minors.is_empty());
    for name in cards.chain(common) {
        let number = fs::metadata(machine.dev.join(&name))?.rdev();
        // As Linux packs them; both numbers are small here.
        let (major, minor) = ((number >> 8) & 0xfff, number & 0xff);
        push(
            &mut spec["linux"]["devices"],
            json!({
                "path": format!("/dev/{name}"), "type": "c",
                "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0,
            }),
        );
        push(
            &mut spec["linux"]["resources"]["devices"],
            json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"}),
        );
    }
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        push(
            &mut spec["mounts"],
            json!({
                "source": machine.libraries.join(name).canonicalize()?,
                "destination": format!("{LIBRARIES}/{name}"),
                "type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"],
            }),
        );
    }
    Ok(())
}

/// The number of the card that one word of a list names.
fn card(word: &str, machine: &Machine) -> Result<u64> {
    let by_place = || {
        let place: u64 = word.parse().ok()?;
        machine.cards.values().copied().find(|minor| *minor == place)
    };
    let found = machine.cards.get(word).copied().or_else(by_place);
    found.ok_or_else(|| format!("{word}: unknown device").into())
}

fn push(list: &mut Value, one: Value) {
    match list {
        Value::Array(all) => all.push(one),
        other => *other = json!([one]),
    }
}
