//! Where every card of a cluster stands in a picture. Knows sizes in pixels, but draws nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{CardModel, Node};

use crate::table::grouped_u64;

/// The side of the largest squares.
const LARGEST: i32 = 22;

/// Every card as a square, nodes side by side, models apart.
pub struct Blocks {
    /// A label, and what is free on each card of each node.
    models: Vec<(String, Vec<Vec<u32>>)>,
    /// The side of a square, with the line between it and the next.
    pub cell: i32,
    /// How high all of it is.
    pub height: i32,
    wide: i32,
    label_widths: Vec<i32>,
}

/// What stands somewhere in the picture.
pub enum Mark<'a> {
    /// The name of a model and how many cards of it there are.
    Label(&'a str),
    /// A card of which so many percent of compute are free.
    Card(u32),
}

impl Blocks {
    /// The cards of `nodes` in `room` (width and height), in squares as large as will do;
    /// `width` is that of a label.
    pub fn new(nodes: &[Arc<Node>], room: (i32, i32), width: impl Fn(&str) -> i32) -> Self {
        let mut models: BTreeMap<&CardModel, Vec<Vec<u32>>> = BTreeMap::new();
        for node in nodes {
            let Some(first) = node.devices.first() else { continue };
            let free = node.devices.iter().map(|state| state.free_cores().0.min(100));
            let mut free: Vec<u32> = free.collect();
            free.sort_unstable();
            models.entry(&first.device.model).or_default().push(free);
        }
        let block = |(model, mut nodes): (&CardModel, Vec<Vec<u32>>)| {
            // Large nodes first, and among equals the full ones.
            nodes.sort_by_key(|node| (std::cmp::Reverse(node.len()), node.iter().sum::<u32>()));
            let cards: usize = nodes.iter().map(Vec::len).sum();
            (format!("{model}: {} cards", grouped_u64(cards as u64)), nodes)
        };
        let mut models: Vec<(String, Vec<Vec<u32>>)> = models.into_iter().map(block).collect();
        models.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
        let label_widths = models.iter().map(|(label, _)| width(label)).collect();
        let mut blocks = Self { models, cell: LARGEST, height: 0, wide: room.0, label_widths };
        // The largest squares that leave room for all.
        loop {
            blocks.height = blocks.lay(|_, _| ());
            if blocks.height <= room.1 || blocks.cell == 1 {
                blocks.height = blocks.height.min(room.1);
                return blocks;
            }
            blocks.cell -= 1;
        }
    }

    /// Puts the models on shelves, from the left and the top; gives how high they are in all.
    pub fn lay(&self, mut put: impl FnMut((i32, i32), Mark)) -> i32 {
        let whole = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let gap = (self.cell / 4).max(1);
        let step = self.cell + gap;
        let in_a_row = usize::try_from(self.wide / step).unwrap_or(1).max(1);
        let (mut x, mut y, mut tall) = (0, 0, 0);
        for ((label, nodes), least) in self.models.iter().zip(&self.label_widths) {
            let needs = (whole(nodes.len().min(in_a_row)) * step).max(*least);
            if x > 0 && x + needs > self.wide {
                (x, y, tall) = (0, y + tall, 0);
            }
            put((x, y + 9), Mark::Label(label));
            let mut top = y + 24;
            for row in nodes.chunks(in_a_row) {
                for (place, node) in row.iter().enumerate() {
                    for (card, free) in node.iter().enumerate() {
                        let at = (x + whole(place) * step, top + whole(card) * self.cell);
                        put(at, Mark::Card(*free));
                    }
                }
                top += whole(row.iter().map(Vec::len).max().unwrap_or(0)) * self.cell + gap + 1;
            }
            tall = tall.max(top - y + 8);
            x += needs + 24;
        }
        y + tall
    }
}
