//! `top`, `inspect` and `simulate`, from the scheduler's answers.

use kubectl::inspect;
use kubectl::simulate;
use kubectl::top::{self, Screen};
use kubectl::view::{Source, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use serde_json::json;

use crate::kept::{is, read};

fn view() -> View {
    View::of_scheduler(read("nodes"), read("devices"), read("shares"), read("pods"))
}

#[test]
fn cards_are_a_table() {
    is("inspect", &inspect::page(&view(), false));
    is("inspect-wide", &inspect::page(&view(), true));
}

#[test]
fn one_node_is_that_node() {
    let one = view().only("gpu-b").unwrap();
    assert_eq!(one.cards().count(), 2);
    assert_eq!(view().only("cpu-1"), None);
}

#[test]
fn cards_are_bars() {
    is("top", &top::page(&view()));
}

#[test]
fn what_does_not_come_from_the_scheduler_says_so() {
    let mut view = view();
    view.source = Source::Cluster { because: "there is no service a/b".into() };
    view.waiting.clear();
    view.nodes.truncate(1);
    view.nodes[0].agent = kubectl::wire::Agent::Stale;
    view.nodes[0].cards[1].strangers = 512;
    is("top-fallback", &top::page(&view));
}

#[test]
fn a_terminal_shows_the_same() {
    let mut terminal = Terminal::new(TestBackend::new(100, 22)).unwrap();
    let seen = Some(Ok(view()));
    let mut screen = Screen { from: 100, bare: false };
    terminal.draw(|frame| top::draw(frame, &mut screen, &seen)).unwrap();
    let rows: Vec<String> = terminal
        .backend()
        .buffer()
        .content()
        .chunks(100)
        .map(|cells| cells.iter().map(Cell::symbol).collect::<String>())
        .map(|row| row.trim_end().to_owned() + "\n")
        .collect();
    is("top-screen", &rows.concat());
    assert_eq!(screen.from, 0, "all of it fits, so there is nowhere to scroll to");
    terminal.draw(|frame| top::draw(frame, &mut screen, &None)).unwrap();
    let lost = Some(Err("connection refused".to_owned()));
    terminal.draw(|frame| top::draw(frame, &mut screen, &lost)).unwrap();
}

#[test]
fn what_would_happen_is_told() {
    let pod = |name: &str| json!({"metadata": {"namespace": "team", "name": name}});
    for file in ["simulate-fits", "simulate-waits", "simulate-refused"] {
        is(file, &simulate::page(&pod("new"), &read(file)));
    }
    is("simulate-not-ours", &simulate::page(&pod("web"), &read("simulate-not-ours")));
}
