//! No file speaks of the machine it was written on, nor of a package registry by its host.
//!
//! Such a path works for nobody else, and the registry is a setting of whoever builds: behind a
//! mirror or without a network, a URL in a script is a broken build.
//! The patterns are put together from halves, because this file is checked too.

use super::Finding;
use super::repo::TextFile;

/// Beginnings of absolute paths of one machine.
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ro", "ot/.")];

/// Registries, as they begin in a URL. The `//` matters: the name of the default registry's
/// index, which lock files carry, is not an address.
const HOSTS: &[&str] = &[
    concat!("//crates", ".io"),
    concat!("//index.crates", ".io"),
    concat!("//static.crates", ".io"),
    concat!("//pypi", ".org"),
    concat!("//files.python", "hosted.org"),
    concat!("//registry.npm", "js.org"),
    concat!("//proxy.go", "lang.org"),
    concat!("//sum.go", "lang.org"),
    concat!("//deb.deb", "ian.org"),
    concat!("//security.deb", "ian.org"),
    concat!("//repo.maven.ap", "ache.org"),
    concat!("//repo1.ma", "ven.org"),
];

/// Reports lines that hold one of the patterns.
pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let mut report = |pattern: &str, what: &str| {
            let sentence = format!("line {number} holds `{pattern}`, {what}");
            findings.push(Finding::new(file.path.as_str(), sentence));
        };
        for pattern in PATHS.iter().filter(|pattern| starts_a_path(line, pattern)) {
            report(pattern, "a path of one machine");
        }
        for pattern in HOSTS.iter().filter(|pattern| line.contains(**pattern)) {
            report(pattern, "the host of a registry");
        }
    }
    findings
}

/// Whether `pattern` begins an absolute path in `line`, and is not the middle of a longer one.
fn starts_a_path(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern).any(|(at, _)| {
        let before = &line[..at];
        // A file URL has its two slashes before the path.
        before.ends_with("//") || !before.ends_with(in_path)
    })
}

/// Letters that end the folder, variable or pattern a path goes on from.
fn in_path(letter: char) -> bool {
    letter.is_alphanumeric() || "/._-~*})".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::super::repo::made_up::file;
    use super::*;

    fn findings_in(text: &str) -> Vec<String> {
        check(&[file("a.md", text)]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_path_of_this_machine_is_a_finding() {
        for path in PATHS {
            let expected = format!("a.md: line 2 holds `{path}`, a path of one machine");
            assert_eq!(findings_in(&format!("\ncd {path}x")), [expected.as_str()]);
            assert_eq!(findings_in(&format!("\nfile://{path}x")), [expected.as_str()]);
        }
    }

    #[test]
    fn a_longer_path_is_not() {
        for path in PATHS {
            assert_eq!(findings_in(&format!("/proc/1{path} $HOME{path} ${{DIR}}{path}")), [""; 0]);
        }
    }

    #[test]
    fn the_host_of_a_registry_is_a_finding() {
        for host in HOSTS {
            assert_eq!(findings_in(&format!("see https:{host}/x")).len(), 1, "{host}");
        }
    }

    #[test]
    fn the_name_of_the_default_registry_is_not() {
        let line = concat!("registry+https://github.com/rust-lang/crates", ".io-index");
        assert_eq!(findings_in(line), [""; 0]);
    }
}
