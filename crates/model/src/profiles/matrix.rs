//! Reads what `nvidia-smi topo -m` prints.
//!
//! ```text
//!         GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
//! GPU0     X      NV2     PIX     0-19,40-59      0
//! GPU1    NV2      X      PHB     0-19,40-59      0
//! ```
//!
//! Columns are apart by tabs. Lines that begin with `#` are comments; a blank line ends the
//! matrix, as what follows there is the legend.

use crate::device::Hop;
use crate::ids::Quoted;
use crate::places::Places;

/// The cards of one machine and how they reach one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    cards: Vec<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    /// To every card; nothing for itself.
    cells: Vec<Option<Cell>>,
    /// To the nearest network card.
    nic: Option<Hop>,
    numa: Option<u32>,
    /// The host's CPUs near to it, as printed.
    cpus: Option<String>,
}

/// How two cards reach each other, as printed: `NVLinks` hide the way over PCIe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Over PCIe only.
    Pcie(Hop),
    /// By so many `NVLinks`.
    NvLinks(u8),
}

/// Why a text is no matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// No line with the names of the columns, or none that is a card's.
    #[error("matrix names no card in its first line")]
    NoCards,
    /// More than a node may have, or not numbered from 0 up.
    #[error("matrix has a column {0}; cards are numbered from GPU0 up to GPU63")]
    Numbering(Quoted),
    /// A card without a row, or with two.
    #[error("matrix has not one row for GPU{0}")]
    Rows(usize),
    /// A cell nobody understands, or none.
    #[error("matrix has {text} between {row} and {column}")]
    Cell {
        /// Which row.
        row: Quoted,
        /// Which column.
        column: Quoted,
        /// What stands there.
        text: Quoted,
    },
    /// The way there is not the way back.
    #[error("matrix says different things of GPU{0} and GPU{1} than of GPU{1} and GPU{0}")]
    Asymmetric(usize, usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Card(usize),
    Nic,
    Cpus,
    Numa,
    Other,
}

impl Matrix {
    /// Reads a matrix.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let header = lines.find(|line| !line.trim().is_empty()).unwrap_or_default();
        let columns = columns(header)?;
        let count = columns.iter().filter(|(column, _)| matches!(column, Column::Card(_))).count();
        let mut cards: Vec<Option<Row>> = vec![None; count];
        // Without a column for NUMA, cards with the same CPUs are on the same node.
        let mut cpus: Vec<&str> = Vec::new();
        for line in lines.take_while(|line| !line.trim().is_empty()) {
            let (name, cells) = line.split_once('\t').unwrap_or((line, ""));
            let Some(card) = card_number(name.trim()) else { continue };
            let slot = cards.get_mut(card).filter(|slot| slot.is_none());
            let slot = slot.ok_or(MatrixError::Rows(card))?;
            *slot = Some(read_row(card, &columns, cells, &mut cpus)?);
        }
        let rows = cards.into_iter().enumerate();
        let cards = rows.map(|(card, row)| row.ok_or(MatrixError::Rows(card)));
        Self { cards: cards.collect::<Result<_, _>>()? }.symmetric()
    }

    /// How many cards there are.
    pub fn count(&self) -> usize {
        self.cards.len()
    }

    /// How two cards reach each other; nothing for a card and itself.
    pub fn cell(&self, one: usize, other: usize) -> Option<Cell> {
        self.cards.get(one)?.cells.get(other).copied().flatten()
    }

    /// The NUMA node of a card.
    pub fn numa(&self, card: usize) -> Option<u32> {
        self.cards.get(card)?.numa
    }

    /// The way from a card to the nearest network card.
    pub fn nic(&self, card: usize) -> Option<Hop> {
        self.cards.get(card)?.nic
    }

    /// The host's CPUs near to a card, such as `0-19,40-59`.
    pub fn cpus(&self, card: usize) -> Option<&str> {
        self.cards.get(card)?.cpus.as_deref()
    }

    /// Every two cards, the lower first.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.count();
        (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)))
    }

    fn symmetric(self) -> Result<Self, MatrixError> {
        match self.pairs().find(|&(a, b)| self.cell(a, b) != self.cell(b, a)) {
            Some((a, b)) => Err(MatrixError::Asymmetric(a, b)),
            None => Ok(self),
        }
    }
}

fn columns(header: &str) -> Result<Vec<(Column, &str)>, MatrixError> {
    let mut columns = Vec::new();
    let mut cards = 0;
    for name in header.split('\t').skip(1).map(str::trim) {
        let column = match card_number(name) {
            Some(card) if card == cards && card < Places::MOST => {
                cards += 1;
                Column::Card(card)
            }
            Some(_) => return Err(MatrixError::Numbering(Quoted::new(name))),
            None if name == "CPU Affinity" => Column::Cpus,
            None if name == "NUMA Affinity" => Column::Numa,
            None if name.is_empty() || name == "GPU NUMA ID" => Column::Other,
            None => Column::Nic,
        };
        columns.push((column, name));
    }
    if cards == 0 { Err(MatrixError::NoCards) } else { Ok(columns) }
}

fn read_row<'a>(
    card: usize,
    columns: &[(Column, &str)],
    cells: &'a str,
    cpus: &mut Vec<&'a str>,
) -> Result<Row, MatrixError> {
    let mut row = Row { cells: Vec::new(), nic: None, numa: None, cpus: None };
    let mut by_cpus = None;
    let mut cells = cells.split('\t').map(str::trim);
    for &(column, name) in columns {
        let text = cells.next().unwrap_or_default();
        let bad = || MatrixError::Cell {
            row: Quoted::new(&format!("GPU{card}")),
            column: Quoted::new(name),
            text: Quoted::new(text),
        };
        match column {
            Column::Card(other) if other == card && text == "X" => row.cells.push(None),
            Column::Card(other) if other == card => return Err(bad()),
            Column::Card(_) => row.cells.push(Some(read_cell(text).ok_or_else(bad)?)),
            Column::Nic => {
                let hop = read_hop(text).ok_or_else(bad)?;
                row.nic = Some(row.nic.map_or(hop, |nearest| nearest.min(hop)));
            }
            Column::Cpus if !text.is_empty() => {
                row.cpus = Some(text.to_owned());
                let known = cpus.iter().position(|other| *other == text);
                let place = known.unwrap_or_else(|| {
                    cpus.push(text);
                    cpus.len() - 1
                });
                by_cpus = u32::try_from(place).ok();
            }
            Column::Numa if !matches!(text, "" | "N/A") => {
                row.numa = Some(text.parse().map_err(|_| bad())?);
            }
            Column::Cpus | Column::Numa | Column::Other => {}
        }
    }
    if !columns.iter().any(|(column, _)| *column == Column::Numa) {
        row.numa = by_cpus;
    }
    Ok(row)
}

fn read_cell(text: &str) -> Option<Cell> {
    match text.strip_prefix("NV") {
        Some(count) => count.parse().ok().filter(|count| *count > 0).map(Cell::NvLinks),
        None => read_hop(text).map(Cell::Pcie),
    }
}

fn read_hop(text: &str) -> Option<Hop> {
    // What `SYS` was called before 2017.
    if text == "SOC" { Some(Hop::CrossSocket) } else { Hop::parse(text) }
}

fn card_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("GPU")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number too long for this is a card all the same, and one too many.
    plain.then(|| digits.parse().unwrap_or(usize::MAX))
}
