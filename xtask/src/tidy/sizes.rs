//! Files stay short enough to be read in one sitting.
//!
//! A hard stop for one file, and a median and 90th percentile over all, because a code base
//! grows by many files getting a little longer. Tests and generated files are apart.

use super::Finding;
use super::repo::TextFile;

/// No file is longer.
const LONGEST: usize = 800;
/// Half of the files are no longer.
const MEDIAN: usize = 150;
/// Nine of ten files are no longer.
const P90: usize = 500;
/// Up to this many files a percentile is only the length of some file.
const TOO_FEW: usize = 20;

/// Reports files over the hard stop, and percentiles over theirs.
pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    let counted: Vec<(&TextFile, usize)> = files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test() && !file.is_generated())
        .map(|file| (file, file.before_tests().lines().count()))
        .collect();
    let mut findings: Vec<Finding> = counted
        .iter()
        .filter(|(_, lines)| *lines > LONGEST)
        .map(|(file, lines)| {
            let sentence = format!("has {lines} lines without its tests; split it below {LONGEST}");
            Finding::new(file.path.as_str(), sentence)
        })
        .collect();
    let mut lengths: Vec<usize> = counted.iter().map(|(_, lines)| *lines).collect();
    lengths.sort_unstable();
    if lengths.len() > TOO_FEW {
        findings.extend(over("median", percentile(&lengths, 50), MEDIAN));
        findings.extend(over("90th percentile", percentile(&lengths, 90), P90));
    }
    findings
}

/// The smallest length that `percent` of all do not exceed. `sorted` is not empty.
fn percentile(sorted: &[usize], percent: usize) -> usize {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

fn over(what: &str, lines: usize, limit: usize) -> Option<Finding> {
    let sentence = format!("the {what} over all .rs files is {lines} lines, more than {limit}");
    (lines > limit).then(|| Finding::new("Cargo.toml", sentence))
}

#[cfg(test)]
mod tests {
    use super::super::repo::made_up::file;
    use super::*;

    fn of_length(path: &str, lines: usize) -> TextFile {
        file(path, "x\n".repeat(lines))
    }

    #[test]
    fn a_file_over_the_hard_stop_is_a_finding() {
        assert_eq!(check(&[of_length("a.rs", 800)]), []);
        assert_eq!(
            check(&[of_length("a.rs", 801)])[0].to_string(),
            "a.rs: has 801 lines without its tests; split it below 800"
        );
    }

    #[test]
    fn tests_generated_and_other_files_are_not_counted() {
        let text = "#[cfg(test)]\nmod tests {\n".to_owned() + &"x\n".repeat(900);
        let files = [
            of_length("a/tests/b.rs", 900),
            of_length("a/benches/b.rs", 900),
            of_length("a.md", 900),
            file("inline.rs", text),
            file("made.rs", "// @generated\n".to_owned() + &"x\n".repeat(900)),
        ];
        assert_eq!(check(&files), []);
    }

    #[test]
    fn many_middling_files_are_a_finding() {
        let files: Vec<TextFile> =
            (0..21).map(|at| of_length("a.rs", if at < 11 { 151 } else { 10 })).collect();
        assert_eq!(check(&files).len(), 1);
        assert!(check(&files)[0].sentence.contains("median over all .rs files is 151"));
        assert_eq!(check(&files[..20]), []);
    }

    #[test]
    fn a_tenth_of_long_files_is_a_finding() {
        let files: Vec<TextFile> =
            (0..30).map(|at| of_length("a.rs", if at < 4 { 501 } else { 10 })).collect();
        assert!(check(&files)[0].sentence.contains("90th percentile"));
        assert_eq!(check(&files[2..]), []);
    }
}
