//! Turns `exports.tsv` into the table of names and the functions behind them, and links the library
//! against nothing that an old machine lacks.
//!
//! A row names a symbol, the library it belongs to (`data` for variables of libcuda), and the module
//! whose function of that name stands in front of the driver's, or `-`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What is taken from the C library, by the library and the version that every machine has.
const NEEDED: [(&str, &str, &[&str]); 2] = [
    (
        "c",
        "libc.so.6",
        &["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "clock_gettime"],
    ),
    ("dl", "libdl.so.2", &["dlopen", "dlvsym", "dladdr"]),
];

fn main() {
    println!("cargo::rerun-if-changed=exports.tsv");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let table = fs::read_to_string("exports.tsv").expect("exports.tsv lies beside build.rs");
    fs::write(out.join("exports.rs"), exports(&table)).expect("OUT_DIR can be written");
    // Only the profile that ships does without the standard library. Cargo tells build scripts the
    // profile by nothing but the folder: target/<profile>/build/<package>/out.
    if out.ancestors().nth(3).is_some_and(|folder| folder.ends_with("limiter")) {
        link(&out);
    }
}

fn exports(table: &str) -> String {
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    let (mut names, mut offsets) = (String::new(), Vec::new());
    let (mut index, mut hooks, mut functions) = (String::new(), String::new(), String::new());
    let mut trampolines = String::new();
    let mut bounds = Vec::new();
    for library in ["cuda", "nvml"] {
        for row in &rows {
            let [name, of, hook] = row[..] else {
                panic!("exports.tsv: three cells a row: {row:?}")
            };
            if of != library {
                continue;
            }
            let place = offsets.len();
            offsets.push(names.len());
            names.push_str(name);
            names.push('\0');
            // Writing to a String cannot fail.
            let _ = writeln!(index, "    pub(crate) const {name}: usize = {place};");
            if hook != "-" {
                let _ = writeln!(
                    hooks,
                    "    Hook {{ index: {place}, function: crate::{hook}::{name} as *const () }},"
                );
            }
            let _ = writeln!(functions, "    trampoline!({name}, {place});");
            let _ = writeln!(trampolines, "    Address(exported::{name} as *const ()),");
        }
        bounds.push(offsets.len());
    }
    for row in rows.iter().filter(|row| row[1] == "data") {
        let size = if row[0] == "cudbgInjectionPath" { 1024 } else { 2 };
        let _ = writeln!(functions, "    variable!({}, {size});", row[0]);
    }
    format!(
        "/// How many functions there are.\npub(crate) const COUNT: usize = {};\n\
         /// The first of NVML's; those before are CUDA's.\npub(crate) const NVML: usize = {};\n\
         static NAMES: &[u8] = b\"{}\";\n\
         static OFFSETS: [u32; COUNT] = {offsets:?};\n\
         /// The place of each name.\n\
         #[expect(non_upper_case_globals, dead_code, reason = \"the names are the API's\")]\n\
         pub(crate) mod ix {{\n{index}}}\n\
         /// The functions of ours that stand in front of the driver's.\n\
         pub(crate) static HOOKS: &[Hook] = &[\n{hooks}];\n\
         #[cfg(panic = \"abort\")]\n\
         mod exported {{\n    use super::*;\n{functions}}}\n\
         #[cfg(panic = \"abort\")]\nstatic TRAMPOLINES: [Address; COUNT] = [\n{trampolines}];\n",
        bounds[1],
        bounds[0],
        names.replace('\0', "\\0"),
    )
}

/// Links against libraries that have only the symbols of [`NEEDED`], at the oldest version of each, so
/// that anything newer is an error here and not on a user's machine.
fn link(out: &Path) {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let oldest = if arch == "x86_64" { "GLIBC_2.2.5" } else { "GLIBC_2.17" };
    for (name, soname, symbols) in NEEDED {
        let (mut source, mut old, mut new) = (String::new(), String::new(), String::new());
        for symbol in symbols {
            let _ = writeln!(source, ".globl {symbol}\n.type {symbol},@function\n{symbol}:");
            let list = if *symbol == "clock_gettime" { &mut new } else { &mut old };
            let _ = write!(list, "{symbol};");
        }
        let mut script = format!("{oldest} {{ global: {old} local: *; }};\n");
        if !new.is_empty() && oldest != "GLIBC_2.17" {
            let _ = writeln!(script, "GLIBC_2.17 {{ global: {new} }} {oldest};");
        } else {
            script = format!("{oldest} {{ global: {old} {new} local: *; }};\n");
        }
        let (asm, map) = (out.join(format!("{name}.s")), out.join(format!("{name}.map")));
        fs::write(&asm, source).expect("OUT_DIR can be written");
        fs::write(&map, script).expect("OUT_DIR can be written");
        let status = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-shared", "-nostdlib", "-o"])
            .arg(out.join(format!("lib{name}.so")))
            .arg(&asm)
            .arg(format!("-Wl,-soname,{soname},--version-script={}", map.display()))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "cc makes a library for {soname}");
    }
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-Wl,-Bsymbolic",
        "-Wl,--no-undefined",
        "-Wl,-z,nodelete",
        "-Wl,--build-id",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-L{}", out.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-lc,-ldl,--pop-state");
}
