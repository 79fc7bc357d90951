//! Turns `symbols.tsv` into the table of exports and the functions that nothing stands behind.
//!
//! A row marked `live` has no function made for it here, so a missing implementation is a link
//! error; one marked `refuses` has, so a second one is a compile error. The table cannot lie.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=symbols.tsv");
    println!("cargo::rerun-if-changed=build.rs");
    // Loaders find the library by its soname, and a call inside must not be caught by a library
    // in front: the genuine one is linked in this way too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let table = fs::read_to_string("symbols.tsv").expect("symbols.tsv lies beside build.rs");
    let mut exports =
        String::from("/// Every export, by name.\npub(crate) static EXPORTS: &[Export] = &[\n");
    let mut declared = String::from("unsafe extern \"C\" {\n");
    let mut refusing = String::new();
    let mut data = String::new();
    for line in table.lines().skip(1) {
        let mut cells = line.split('\t');
        let (Some(name), Some(since), Some(answer)) = (cells.next(), cells.next(), cells.next())
        else {
            panic!("symbols.tsv: a row needs a name, a version and an answer: {line}")
        };
        // Writing to a String cannot fail.
        let _ = match answer {
            "live" => writeln!(declared, "    fn {name}();"),
            "refuses" => writeln!(
                refusing,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> u32 {{ crate::refuse() }}"
            ),
            "data" => writeln!(
                data,
                "#[unsafe(no_mangle)]\nstatic {name}: [AtomicU32; {}] = [const {{ AtomicU32::new(0) }}; {0}];",
                if name == "cudbgInjectionPath" { 1024 } else { 2 }
            ),
            other => panic!("symbols.tsv: {name} is {other}, not live, refuses or data"),
        };
        if answer != "data" {
            let _ = writeln!(
                exports,
                "    Export {{ name: \"{name}\", since: {since}, address: {name} as *const c_void }},"
            );
        }
    }
    exports.push_str("];\n");
    declared.push_str("}\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let text = format!("{exports}{declared}{refusing}{data}");
    fs::write(out.join("exports.rs"), text).expect("OUT_DIR can be written");
}
