//! `top` on a terminal. One task looks at the cluster, this one draws and listens to keys.

use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::watch;

use super::page::line;
use super::{bar, memory};
use crate::inspect::{portion, state, totals};
use crate::numbers::counted;
use crate::view::{Source, View};

/// What was last seen, or why nothing could be.
pub type Seen = Option<Result<View, String>>;

/// What a person has chosen to see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Screen {
    /// The first line of the nodes that is shown.
    pub from: usize,
    /// Whether pods are listed under their cards.
    pub bare: bool,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    GoesOn,
    Ends,
}

/// Draws until somebody leaves. The terminal is put back in any case.
pub fn run(seen: &watch::Receiver<Seen>) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot draw here; use --plain")?;
    let outcome = listen(&mut terminal, seen);
    ratatui::restore();
    outcome
}

fn listen(terminal: &mut DefaultTerminal, seen: &watch::Receiver<Seen>) -> anyhow::Result<()> {
    let mut screen = Screen::default();
    loop {
        let now = seen.borrow().clone();
        terminal.draw(|frame| draw(frame, &mut screen, &now))?;
        if !event::poll(Duration::from_millis(200))? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        let interrupt =
            key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        if key.kind == KeyEventKind::Release {
            continue;
        }
        if interrupt || screen.press(key.code) == Done::Ends {
            return Ok(());
        }
    }
}

impl Screen {
    fn press(&mut self, key: KeyCode) -> Done {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Done::Ends,
            KeyCode::Down | KeyCode::Char('j') => self.from += 1,
            KeyCode::Up | KeyCode::Char('k') => self.from = self.from.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.from += 10,
            KeyCode::PageUp => self.from = self.from.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => self.from = 0,
            KeyCode::Char('p') => self.bare = !self.bare,
            _ => {}
        }
        Done::GoesOn
    }
}

/// One picture.
pub fn draw(frame: &mut Frame, screen: &mut Screen, seen: &Seen) {
    let view = match seen {
        None => return frame.render_widget(Paragraph::new("looking ..."), frame.area()),
        Some(Err(why)) => {
            let text =
                vec![Line::from("The cluster cannot be seen:").red(), Line::from(why.clone())];
            return frame.render_widget(Paragraph::new(text), frame.area());
        }
        Some(Ok(view)) => view,
    };
    let waiting = u16::try_from(view.waiting.len()).unwrap_or(u16::MAX);
    let waiting = if waiting == 0 { 0 } else { waiting.min(6) + 2 };
    let [head, body, foot, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(waiting),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(title(view)), head);
    let lines = cards(view, screen.bare);
    // The last line stays in sight.
    screen.from = screen.from.min(lines.len().saturating_sub(usize::from(body.height)));
    let from = u16::try_from(screen.from).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(lines).scroll((from, 0)), body);
    if waiting > 0 {
        let title =
            format!(" {} waiting; kubectl nanogpu why POD ", counted(view.waiting.len(), "pod"));
        let lines: Vec<Line> = view.waiting.iter().map(|it| Line::from(line(it))).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), foot);
    }
    let help = "q leave  ↑↓ scroll  p pods";
    frame.render_widget(Paragraph::new(help).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

fn title(view: &View) -> Vec<Line<'static>> {
    let first = Line::from(totals(view).trim_end().to_owned()).bold();
    let second = match &view.source {
        Source::Scheduler => match view.hidden.first() {
            Some(hidden) => Line::from(hidden.clone()).yellow(),
            None => Line::default(),
        },
        Source::Cluster { because } => {
            Line::from(format!("from annotations; the scheduler was not asked: {because}")).yellow()
        }
    };
    vec![first, second]
}

fn cards(view: &View, bare: bool) -> Vec<Line<'static>> {
    let model = view.cards().map(|card| card.model.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for node in &view.nodes {
        lines.push(match &node.problem {
            Some(problem) => Line::from(format!("{}  {problem}", node.name)).red().bold(),
            None => Line::from(node.name.clone()).bold(),
        });
        for card in &node.cards {
            let word = state(node, card);
            let (taken, free) = bar(card.cores_held.into(), card.cores.into());
            let (memory_taken, memory_free) = bar(card.memory_held, card.memory);
            let mut spans = vec![
                Span::from(format!("  {:>2}  {:<model$}  ", card.index, card.model)),
                Span::styled(taken, shade(card.cores_held.into(), card.cores.into())),
                Span::styled(free, Color::DarkGray),
                Span::from(format!(" {:>3}%  ", card.cores_held)),
                Span::styled(memory_taken, shade(card.memory_held, card.memory)),
                Span::styled(memory_free, Color::DarkGray),
                Span::from(format!(" {}", memory(card))),
            ];
            if word != "ok" {
                spans.push(Span::styled(format!("  {word}"), Style::new().red().bold()));
            }
            lines.push(Line::from(spans));
            if bare {
                continue;
            }
            for held in &card.held_by {
                let name = format!("      {}/{}  ", held.namespace, held.pod);
                lines.push(Line::from(vec![Span::from(name), Span::from(portion(held)).cyan()]));
            }
        }
    }
    lines
}

/// Green, then yellow from three quarters on, then red when it is full. The numbers say the same.
fn shade(taken: u64, of: u64) -> Color {
    match crate::numbers::percent(taken, of) {
        0..75 => Color::Green,
        75..95 => Color::Yellow,
        _ => Color::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_scroll_hide_and_leave() {
        let mut screen = Screen::default();
        assert_eq!(screen.press(KeyCode::Up), Done::GoesOn);
        assert_eq!(screen.from, 0);
        screen.press(KeyCode::PageDown);
        screen.press(KeyCode::Char('k'));
        screen.press(KeyCode::Char('p'));
        assert_eq!(screen, Screen { from: 9, bare: true });
        assert_eq!(screen.press(KeyCode::Char('q')), Done::Ends);
    }
}
