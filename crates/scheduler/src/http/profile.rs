//! A CPU profile as `go tool pprof` reads it: the message `Profile` of `perftools.profiles`, as much
//! of it as we have something to say in. Pure: stacks in, bytes out.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use prost::Message;

/// The whole file. Texts are numbers into `string_table`, whose first text is empty.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of a sample are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Stacks and how often each was seen.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// The program; there is one.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Places in the code.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions those are in.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All texts.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it began, since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it took.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What `period` is counted in.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// From one sample to the next.
    #[prost(int64, tag = "12")]
    pub period: i64,
}

/// What a number means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ValueType {
    /// Of what.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// In what.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Sample {
    /// Its locations, the innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// A value for each of `sample_type`.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
}

/// What code was loaded from. That the names are all here keeps `go tool pprof` from asking for them.
#[expect(clippy::struct_excessive_bools, reason = "so the format has it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Mapping {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The program's name.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Functions are known.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Files are known.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Lines are known.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Inlined functions are known.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A place in the code.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Location {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Of which mapping.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Its line, after those of the functions inlined there.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Line {
    /// Which function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Which line of its file.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Function {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Its name for the linker.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Its source.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

/// One line of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) name: String,
    pub(super) system_name: String,
    pub(super) file: String,
    pub(super) line: u32,
}

/// A stack, the innermost frame first, and how often it was seen. A frame is its function after those
/// inlined there.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) frames: Vec<Vec<Spot>>,
    pub(super) seen: i64,
}

/// When and how often was looked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) began: SystemTime,
    pub(super) took: Duration,
    pub(super) hertz: i32,
}

/// The file of these stacks of `program`.
pub(super) fn encode(program: &str, stacks: &[Stack], timing: Timing) -> Vec<u8> {
    let mut tables = Tables::default();
    let _empty = tables.text("");
    let period = 1_000_000_000 / i64::from(timing.hertz.max(1));
    let samples = ValueType { r#type: tables.text("samples"), unit: tables.text("count") };
    let cpu = ValueType { r#type: tables.text("cpu"), unit: tables.text("nanoseconds") };
    let mapping = Mapping {
        id: 1,
        filename: tables.text(program),
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
        has_inline_frames: true,
    };
    let sample = |stack: &Stack| Sample {
        location_id: stack.frames.iter().map(|frame| tables.location(frame)).collect(),
        value: vec![stack.seen, stack.seen.saturating_mul(period)],
    };
    let sample = stacks.iter().map(sample).collect();
    let since_1970 = timing.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let profile = Profile {
        sample_type: vec![samples, cpu],
        sample,
        mapping: vec![mapping],
        location: tables.locations,
        function: tables.functions,
        string_table: tables.texts,
        time_nanos: nanos(since_1970),
        duration_nanos: nanos(timing.took),
        period_type: Some(cpu),
        period,
    };
    profile.encode_to_vec()
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Everything that is said once and then referred to.
#[derive(Default)]
struct Tables {
    texts: Vec<String>,
    text_ids: HashMap<String, i64>,
    functions: Vec<Function>,
    function_ids: HashMap<(i64, i64), u64>,
    locations: Vec<Location>,
    location_ids: HashMap<Vec<Line>, u64>,
}

impl Tables {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(&id) = self.text_ids.get(text) {
            return id;
        }
        let id = i64::try_from(self.texts.len()).unwrap_or_default();
        self.texts.push(text.to_owned());
        self.text_ids.insert(text.to_owned(), id);
        id
    }

    fn function(&mut self, spot: &Spot) -> u64 {
        let (system_name, filename) = (self.text(&spot.system_name), self.text(&spot.file));
        let name = self.text(&spot.name);
        let functions = &mut self.functions;
        *self.function_ids.entry((system_name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, system_name, filename });
            id
        })
    }

    fn location(&mut self, frame: &[Spot]) -> u64 {
        let line =
            |spot: &Spot| Line { function_id: self.function(spot), line: i64::from(spot.line) };
        let lines: Vec<Line> = frame.iter().map(line).collect();
        let locations = &mut self.locations;
        *self.location_ids.entry(lines).or_insert_with_key(|lines| {
            let id = locations.len() as u64 + 1;
            locations.push(Location { id, mapping_id: 1, line: lines.clone() });
            id
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(name: &str, line: u32) -> Spot {
        let system_name = format!("_R{name}");
        Spot { name: name.to_owned(), system_name, file: "a.rs".to_owned(), line }
    }

    /// A sample as people read it: `inner:1<outer:2 main:3 = 4, 40`.
    fn shown(profile: &Profile) -> Vec<String> {
        let text = |id: i64| profile.string_table[usize::try_from(id).unwrap()].as_str();
        let line = |line: &Line| {
            let function = profile.function.iter().find(|function| function.id == line.function_id);
            let function = function.unwrap();
            assert_eq!(text(function.system_name), format!("_R{}", text(function.name)));
            assert_eq!(text(function.filename), "a.rs");
            format!("{}:{}", text(function.name), line.line)
        };
        let location = |id: &u64| {
            let location = profile.location.iter().find(|location| location.id == *id).unwrap();
            assert_eq!(location.mapping_id, profile.mapping[0].id);
            location.line.iter().map(line).collect::<Vec<_>>().join("<")
        };
        let sample = |sample: &Sample| {
            let stack: Vec<_> = sample.location_id.iter().map(location).collect();
            format!("{} = {:?}", stack.join(" "), sample.value)
        };
        profile.sample.iter().map(sample).collect()
    }

    #[test]
    fn what_is_encoded_is_read_again() {
        let main = vec![spot("main", 3)];
        let stacks = [
            Stack { frames: vec![vec![spot("inner", 1), spot("outer", 2)], main.clone()], seen: 4 },
            Stack { frames: vec![vec![spot("outer", 7)], main], seen: 1 },
        ];
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let timing = Timing { began, took: Duration::from_millis(1500), hertz: 100 };
        let profile = Profile::decode(&*encode("program", &stacks, timing)).unwrap();
        assert_eq!(
            shown(&profile),
            ["inner:1<outer:2 main:3 = [4, 40000000]", "outer:7 main:3 = [1, 10000000]"]
        );
        assert_eq!((profile.function.len(), profile.location.len()), (3, 3), "each is said once");
        assert_eq!(profile.string_table[0], "");
        let text = |id: i64| profile.string_table[usize::try_from(id).unwrap()].as_str();
        let types = profile.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit)));
        assert_eq!(types.collect::<Vec<_>>(), [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!(profile.period_type, Some(profile.sample_type[1]));
        assert_eq!(text(profile.mapping[0].filename), "program");
        let times = (profile.time_nanos, profile.duration_nanos, profile.period);
        assert_eq!(times, (5_000_000_000, 1_500_000_000, 10_000_000));
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let stacks = [Stack { frames: vec![vec![spot("f", 9)]], seen: 2 }];
        let timing = Timing { began: SystemTime::UNIX_EPOCH, took: Duration::ZERO, hertz: 100 };
        let bytes = encode("p", &stacks, timing);
        // Field 2, ten bytes: location 1, then the values 2 and 20000000, both packed.
        let sample = [0x12, 10, 0x0a, 1, 1, 0x12, 5, 2, 0x80, 0xda, 0xc4, 0x09];
        assert!(bytes.windows(sample.len()).any(|window| window == sample), "{bytes:02x?}");
        // Field 4: location 1 of mapping 1, function 1 line 9.
        let location = [0x22, 10, 0x08, 1, 0x10, 1, 0x22, 4, 0x08, 1, 0x10, 9];
        assert!(bytes.windows(location.len()).any(|window| window == location), "{bytes:02x?}");
    }
}
