//! What `cargo xtask demo` leaves to its audience: the address it prints, opened in a browser.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::browser::Browser;
use crate::page::kept;

/// A name of its own, so that a person's demo is not touched.
const NAME: &str = "demo-story";

/// Takes the cluster away, whatever came of the story.
struct Away;

impl Drop for Away {
    fn drop(&mut self) {
        let _ = testbed::down(NAME);
    }
}

#[test]
fn the_demo_leaves_a_dashboard_that_shows_its_cards_pods_and_reasons() -> Result<()> {
    testbed::down(NAME)?;
    let _away = Away;
    let shown =
        Command::new(testbed::built()?.join("nanogpu-demo")).args(["--name", NAME]).output()?;
    let said = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(
        shown.status.success(),
        "the demo failed: {}\n{said}",
        String::from_utf8_lossy(&shown.stderr)
    );
    let address = said.lines().find_map(|line| line.trim().strip_prefix("Dashboard"));
    let address = address.with_context(|| format!("no address in:\n{said}"))?.trim();

    let browser = Browser::start()?;
    browser.look(1280, 1100, "light")?;
    browser.open(address)?;
    browser.sees("document.querySelectorAll('#map .node').length === 2")?;
    browser.sees("document.querySelectorAll('#map .card').length === 12")?;
    browser.sees("document.querySelector('#link').textContent === 'Live'")?;
    for pod in ["thirty", "fifty", "nano-two-cards", "gpushare-1", "vcuda-whole", "hami"] {
        browser.sees(&format!("[...document.querySelectorAll('#map .chip')].some((chip) => chip.textContent.includes('{pod}'))"))?;
    }
    browser.picture(&kept("demo.png")?)?;
    browser.run(
        "[...document.querySelectorAll('#waiting-list button')].find((b) => b.textContent.includes('four-t4')).click();",
    )?;
    browser.sees(
        "document.querySelector('#story-title').textContent.endsWith('/four-t4') && document.querySelector('#story-body').textContent.includes('What would help')",
    )?;
    browser.picture(&kept("demo-story.png")?)?;
    let kept = browser.run("return sessionStorage.length;")?;
    ensure!(kept == json!(0), "the browser has something of the token: {kept}");
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}
