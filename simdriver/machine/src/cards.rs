//! Facts of card models, from their public data sheets.

/// What a model is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// A part of the name by which it is known.
    pub token: &'static str,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// CUDA cores in each.
    pub cores: u32,
    /// Compute capability.
    pub capability: (u32, u32),
    /// As NVML numbers architectures.
    pub architecture: u32,
    /// PCI device and vendor.
    pub pci: u32,
    /// In bits.
    pub bus_width: u32,
    /// Memory clock and graphics clock at full speed, in MHz.
    pub clocks: (u32, u32),
    /// Power limit and idle power, in W.
    pub watts: (u32, u32),
    /// Generation of PCIe.
    pub pcie: u32,
    /// Generation of its `NVLink`, 0 without.
    pub nvlink: u32,
    /// Its row in the table of MIG profiles.
    pub mig: Option<usize>,
    /// Fans of its own.
    pub fans: u32,
    /// As NVML numbers brands.
    pub brand: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Memory per multiprocessor's thread slots: resident threads.
    pub threads: u32,
}

const NVIDIA: u32 = 14;
const TESLA: u32 = 2;
const QUADRO: u32 = 1;
const GEFORCE: u32 = 5;

macro_rules! facts {
    ($token:literal, $sms:literal x $cores:literal, $major:literal.$minor:literal, arch $arch:literal,
     pci $pci:literal, bus $bus:literal, clocks $mem:literal/$sm:literal, watts $most:literal/$idle:literal,
     pcie $pcie:literal, nvlink $nvlink:literal, mig $mig:expr, fans $fans:literal, $brand:ident,
     copies $copies:literal, threads $threads:literal) => {
        Facts {
            token: $token,
            multiprocessors: $sms,
            cores: $cores,
            capability: ($major, $minor),
            architecture: $arch,
            pci: ($pci << 16) | 0x10de,
            bus_width: $bus,
            clocks: ($mem, $sm),
            watts: ($most, $idle),
            pcie: $pcie,
            nvlink: $nvlink,
            mig: $mig,
            fans: $fans,
            brand: $brand,
            copy_engines: $copies,
            threads: $threads,
        }
    };
}

#[rustfmt::skip]
const TABLE: &[Facts] = &[
    facts!("V100-SXM2", 80 x 64, 7 . 0, arch 5, pci 0x1db5, bus 4096, clocks 877/1530, watts 300/42, pcie 3, nvlink 2, mig None, fans 0, TESLA, copies 5, threads 2048),
    facts!("V100-SXM3", 80 x 64, 7 . 0, arch 5, pci 0x1db8, bus 4096, clocks 958/1597, watts 350/50, pcie 3, nvlink 2, mig None, fans 0, TESLA, copies 5, threads 2048),
    facts!("T4", 40 x 64, 7 . 5, arch 6, pci 0x1eb8, bus 256, clocks 5001/1590, watts 70/9, pcie 3, nvlink 0, mig None, fans 0, TESLA, copies 3, threads 1024),
    facts!("RTX 8000", 72 x 64, 7 . 5, arch 6, pci 0x1e30, bus 384, clocks 7001/2100, watts 260/14, pcie 3, nvlink 2, mig None, fans 1, QUADRO, copies 3, threads 1024),
    facts!("A100-SXM4-40GB", 108 x 64, 8 . 0, arch 7, pci 0x20b0, bus 5120, clocks 1215/1410, watts 400/52, pcie 4, nvlink 3, mig Some(0), fans 0, NVIDIA, copies 5, threads 2048),
    facts!("A100-SXM4-80GB", 108 x 64, 8 . 0, arch 7, pci 0x20b2, bus 5120, clocks 1593/1410, watts 400/62, pcie 4, nvlink 3, mig Some(1), fans 0, NVIDIA, copies 5, threads 2048),
    facts!("A800-SXM4-80GB", 108 x 64, 8 . 0, arch 7, pci 0x20bd, bus 5120, clocks 1593/1410, watts 400/62, pcie 4, nvlink 3, mig Some(1), fans 0, NVIDIA, copies 5, threads 2048),
    facts!("A10", 72 x 128, 8 . 6, arch 7, pci 0x2236, bus 384, clocks 6251/1695, watts 150/16, pcie 4, nvlink 0, mig None, fans 0, NVIDIA, copies 2, threads 1536),
    facts!("L40S", 142 x 128, 8 . 9, arch 8, pci 0x26b9, bus 384, clocks 9001/2520, watts 350/34, pcie 4, nvlink 0, mig None, fans 0, NVIDIA, copies 2, threads 1536),
    facts!("L4", 58 x 128, 8 . 9, arch 8, pci 0x27b8, bus 192, clocks 6251/2040, watts 72/13, pcie 4, nvlink 0, mig None, fans 0, NVIDIA, copies 2, threads 1536),
    facts!("RTX 4090", 128 x 128, 8 . 9, arch 8, pci 0x2684, bus 384, clocks 10501/3105, watts 450/22, pcie 4, nvlink 0, mig None, fans 2, GEFORCE, copies 2, threads 1536),
    facts!("H100", 132 x 128, 9 . 0, arch 9, pci 0x2330, bus 5120, clocks 2619/1980, watts 700/72, pcie 5, nvlink 4, mig Some(2), fans 0, NVIDIA, copies 3, threads 2048),
    facts!("B200", 148 x 128, 10 . 0, arch 10, pci 0x2901, bus 7680, clocks 3996/1965, watts 1000/140, pcie 5, nvlink 5, mig Some(3), fans 0, NVIDIA, copies 3, threads 2048),
    facts!("B300", 148 x 128, 10 . 3, arch 10, pci 0x3182, bus 7680, clocks 3996/2032, watts 1100/150, pcie 5, nvlink 5, mig Some(4), fans 0, NVIDIA, copies 3, threads 2048),
];

/// For a model nobody knows: a card of middling size.
const UNKNOWN: Facts = facts!("", 80 x 64, 8 . 0, arch 7, pci 0x20f1, bus 256, clocks 5001/1500, watts 250/25, pcie 4, nvlink 0, mig None, fans 0, NVIDIA, copies 2, threads 2048);

/// The facts of a model, by the longest token its name holds.
pub fn facts(model: &str) -> Facts {
    let known = TABLE.iter().filter(|facts| model.contains(facts.token));
    known.max_by_key(|facts| facts.token.len()).copied().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_of_a_profile_is_known() {
        for name in model::profiles::names() {
            let profile = model::profiles::Profile::named(name).unwrap();
            let facts = facts(&profile.model.0);
            assert!(!facts.token.is_empty(), "{name}: {}", profile.model);
        }
    }

    #[test]
    fn the_longest_token_decides() {
        assert_eq!(facts("NVIDIA L40S").multiprocessors, 142);
        assert_eq!(facts("NVIDIA L4").multiprocessors, 58);
        assert_eq!(facts("NVIDIA A100-SXM4-80GB").clocks.0, 1593);
        assert_eq!(facts("Something else"), UNKNOWN);
    }
}
