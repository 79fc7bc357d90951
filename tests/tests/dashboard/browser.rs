//! A Chromium, over `WebDriver`: the few commands a story needs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// What Debian calls them.
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// Keys that are no letters, as `WebDriver` writes them.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";

/// A browser with one page.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Result<Self> {
        install()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let driver = Command::new("chromedriver")
            .arg(format!("--port={}", address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start chromedriver")?;
        let profile = tempfile::tempdir()?;
        let mut browser = Self { driver, address, session: String::new(), profile };
        let started = Instant::now();
        while browser.call("GET", "/status", &Value::Null).is_err() {
            ensure!(started.elapsed() < Duration::from_secs(30), "chromedriver does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        let folder = format!("--user-data-dir={}", browser.profile.path().display());
        let args: Vec<&str> = FLAGS.iter().copied().chain([folder.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = browser.call("POST", "/session", &wanted)?;
        browser.session = made["sessionId"].as_str().context("no session")?.to_owned();
        Ok(browser)
    }

    pub(crate) fn open(&self, url: &str) -> Result<()> {
        self.command("POST", "url", &json!({"url": url})).map(drop)
    }

    /// What this script returns in the page.
    pub(crate) fn run(&self, script: &str) -> Result<Value> {
        self.command("POST", "execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until this expression is true in the page.
    pub(crate) fn sees(&self, expression: &str) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_mins(1) {
            if self.run(&format!("return Boolean({expression});"))? == json!(true) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let text = self.run("return document.body.innerText;")?;
        bail!("never true: {expression}\nthe page says:\n{}", text.as_str().unwrap_or_default())
    }

    /// Presses keys, one after another, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) -> Result<()> {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
            })
            .collect();
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.command("POST", "actions", &keyboard).map(drop)
    }

    /// A window of this size, and light or dark as the reader of the page would have set it.
    pub(crate) fn look(&self, width: u32, height: u32, scheme: &str) -> Result<()> {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics)?;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme},
                                        {"name": "prefers-reduced-motion", "value": "reduce"}]});
        self.devtools("Emulation.setEmulatedMedia", &media)
    }

    fn devtools(&self, command: &str, params: &Value) -> Result<()> {
        let body = json!({"cmd": command, "params": params});
        self.command("POST", "goog/cdp/execute", &body).map(drop)
    }

    /// A picture of the page, for people.
    pub(crate) fn picture(&self, path: &Path) -> Result<()> {
        let text = self.command("GET", "screenshot", &Value::Null)?;
        let mut base64 = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(path)?)
            .spawn()?;
        base64
            .stdin
            .take()
            .context("stdin")?
            .write_all(text.as_str().unwrap_or_default().as_bytes())?;
        ensure!(base64.wait()?.success(), "no picture");
        Ok(())
    }

    /// What scripts and the policy complained of. That a question was answered with no is no fault
    /// of the page, though the browser notes it.
    pub(crate) fn complaints(&self) -> Result<Vec<String>> {
        let log = self.command("POST", "se/log", &json!({"type": "browser"}))?;
        let entries = log.as_array().cloned().unwrap_or_default();
        let bad = |entry: &&Value| entry["level"] == "SEVERE" && entry["source"] != "network";
        Ok(entries.iter().filter(bad).map(|entry| entry["message"].to_string()).collect())
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        self.call(method, &format!("/session/{}/{path}", self.session), body)
            .with_context(|| format!("{method} {path}"))
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_mins(2)))?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address.port(),
            body.len(),
        )?;
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            ensure!(reader.read_line(&mut line)? > 0, "chromedriver hung up");
            let line = line.trim().to_ascii_lowercase();
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let value = answer["value"].clone();
        if let Some(error) = value.get("error").and_then(Value::as_str) {
            bail!("{error}: {}", value["message"].as_str().unwrap_or_default());
        }
        Ok(value)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.call("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn install() -> Result<()> {
    let is_there = |program: &str| {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    if is_there("chromium") && is_there("chromedriver") {
        return Ok(());
    }
    let apt = |line: &[&str]| {
        let done = Command::new("apt-get")
            .args(["-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"])
            .args(line)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status();
        done.is_ok_and(|status| status.success())
    };
    let line = [&["install"][..], &PACKAGES].concat();
    // A list of packages that is old is the usual reason for a failure.
    let installed = apt(&line) || (apt(&["update"]) && apt(&line));
    if !installed {
        bail!("a Chromium is needed: apt-get install {}", PACKAGES.join(" "));
    }
    Ok(())
}
