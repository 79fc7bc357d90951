//! What people see, do with the keyboard alone, and are not shown.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::bed::{Bed, Scheduler, asks, percent};
use crate::browser::{Browser, ENTER, ESCAPE, TAB};

/// Who sees the whole cluster, and who sees one namespace of it.
const PEOPLE: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: vision}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: anna, namespace: vision}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: dashboard-test}
rules: [{apiGroups: [''], resources: [pods, nodes], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: dashboard-test}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dashboard-test}
subjects: [{kind: ServiceAccount, name: operator, namespace: vision}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: dashboard-test, namespace: vision}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dashboard-test}
subjects: [{kind: ServiceAccount, name: anna, namespace: vision}]
";

/// Every text that shows has the contrast people need; every control has a name; headings do not
/// skip a step. Returns what is wrong.
const AUDIT: &str = r"
const wrong = [];
const rgb = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let n = walker.nextNode(); n; n = walker.nextNode()) {
  const e = n.parentElement;
  if (!n.data.trim() || !e.checkVisibility() || e.closest('.out-of-sight, .skip, svg, noscript, .closed')) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(1)}: ${n.data.trim()}`);
}
for (const e of document.querySelectorAll('button, input, a, summary')) {
  if (!e.checkVisibility()) continue;
  const name = e.getAttribute('aria-label') ?? (e.labels?.[0]?.textContent || e.textContent);
  if (!name.trim()) wrong.push(`no name: ${e.id || e.className}`);
}
for (const e of document.querySelectorAll('img')) if (!e.hasAttribute('alt')) wrong.push(`no alt: ${e.src}`);
let depth = 0;
for (const e of document.querySelectorAll('h1, h2, h3, h4')) {
  if (!e.checkVisibility() || e.closest('dialog')) continue;
  const now = Number(e.tagName[1]);
  if (now > depth + 1) wrong.push(`heading skips a step: ${e.textContent}`);
  depth = now;
}
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
if (new Set(ids).size !== ids.length) wrong.push('an id stands twice');
for (const landmark of ['header', 'main', 'nav']) if (document.querySelectorAll(`body > ${landmark}, header > ${landmark}`).length !== 1) wrong.push(`not one ${landmark}`);
return wrong;
";

#[tokio::test(flavor = "multi_thread")]
async fn people_see_the_cluster_and_why_a_pod_waits() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = Scheduler::start_for_tokens(bed.cluster, &[])?;
    bed.point_at(&scheduler);
    scheduler.ready().await?;
    for namespace in ["vision", "nlp"] {
        let all: Api<Namespace> = Api::all(bed.session.client());
        let made = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        let _ = all.create(&PostParams::default(), &made).await;
    }
    bed.session.apply("default", PEOPLE).await?;
    for (namespace, pod, part) in [
        ("vision", "detector", 40),
        ("vision", "tracker", 30),
        ("nlp", "embedder", 20),
        ("nlp", "ranker", 60),
        ("vision", "notebook", 10),
        ("nlp", "finetune", 100),
    ] {
        bed.create(namespace, &percent(pod, part)).await?;
        bed.bound(namespace, pod).await?;
    }
    // A node has four cards.
    bed.create("vision", &asks("wide", &json!({"nano-gpu/gpu-percent": "800"}))).await?;
    // What others write is shown as they wrote it and is never markup.
    bed.inventory("gpu-00003", "<img src=x onerror=document.title=`broken`>").await?;

    let address = scheduler.address;
    let operator = token(&bed, "operator").await?;
    let anna = token(&bed, "anna").await?;
    let page = format!("http://{address}/dashboard/");
    tokio::task::spawn_blocking(move || -> Result<Browser> {
        let browser = Browser::start()?;
        browser.look(1280, 900, "light")?;
        whole_cluster(&browser, &page, &operator)?;
        by_keyboard(&browser)?;
        Ok(browser)
    })
    .await?
    .map(Story)?
    .go_on(&bed, &scheduler, &anna)
    .await
}

struct Story(Browser);

impl Story {
    async fn go_on(self, bed: &Bed, scheduler: &Scheduler, anna: &str) -> Result<()> {
        let Self(browser) = self;
        // Nobody reloads the page.
        browser.run("window.kept = true;")?;
        bed.create("nlp", &percent("late", 30)).await?;
        tokio::task::block_in_place(|| {
            browser.sees("[...document.querySelectorAll('#changes li')].some((li) => li.textContent.includes('nlp/late was placed on gpu-'))")?;
            browser.sees("[...document.querySelectorAll('#map .chip')].some((chip) => chip.textContent.includes('late'))")?;
            ensure!(browser.run("return window.kept === true;")? == json!(true), "reloaded");
            pictures(&browser)?;
            one_namespace(&browser, anna)
        })?;
        let kubeconfig = kubeconfig(bed, &token(bed, "operator").await?)?;
        let served = Served::start(&kubeconfig, &format!("http://{}", scheduler.address))?;
        tokio::task::block_in_place(|| {
            browser.open(&served.address)?;
            browser.sees("document.querySelectorAll('#map .card').length === 12")?;
            browser.sees("document.querySelector('#link').textContent === 'Live'")?;
            let kept = browser.run("return sessionStorage.length;")?;
            ensure!(kept == json!(0), "the browser has something of the token: {kept}");
            let complaints = browser.complaints()?;
            ensure!(complaints.is_empty(), "{complaints:#?}");
            Ok(())
        })
    }
}

/// Signs in by keyboard and sees nodes, cards and shares.
fn whole_cluster(browser: &Browser, page: &str, token: &str) -> Result<()> {
    browser.open(page)?;
    browser.sees(
        "!document.querySelector('#login').hidden && document.activeElement.id === 'token'",
    )?;
    browser.press("not-a-token")?;
    browser.press(ENTER)?;
    browser.sees("document.querySelector('#login-error').textContent.includes('not known')")?;
    browser.press(token)?;
    browser.press(ENTER)?;
    // The fourth node's inventory cannot be read.
    browser.sees("document.querySelectorAll('#map .node').length === 4")?;
    browser.sees("document.querySelectorAll('#map .card').length === 12")?;
    browser.sees("document.querySelectorAll('#map .chip').length >= 6")?;
    browser.sees("document.querySelector('#link').textContent === 'Live'")?;
    let strange = browser.run("return document.querySelectorAll('img').length === 1 && document.title === 'nanogpu' && document.querySelector('#map').textContent.includes('<img src=x');")?;
    ensure!(strange == json!(true), "what a node wrote became markup, or is not shown");
    Ok(())
}

/// Opens the waiting pod's story with the keyboard alone, reads it, and comes back to where it was.
fn by_keyboard(browser: &Browser) -> Result<()> {
    let focused = "return document.activeElement?.dataset?.key ?? '';";
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0);")?;
    let mut steps = 0;
    while browser.run(focused)? != json!("waiting vision/wide") {
        steps += 1;
        ensure!(steps < 60, "the waiting pod is not reached by Tab");
        browser.press(TAB)?;
    }
    browser.press(ENTER)?;
    browser.sees("document.querySelector('#story').open && document.querySelector('#story-title').textContent === 'vision/wide'")?;
    browser.sees("/has .*card/.test(document.querySelector('#story-body').textContent) && document.querySelector('#story-body').textContent.includes('What would help')")?;
    browser.picture(&kept("story.png")?)?;
    browser.press(ESCAPE)?;
    browser.sees("!document.querySelector('#story').open")?;
    ensure!(browser.run(focused)? == json!("waiting vision/wide"), "the focus is lost");
    Ok(())
}

/// Looks at the page as different people have it, and lets people look at the pictures.
fn pictures(browser: &Browser) -> Result<()> {
    for (name, width, height, scheme) in
        [("light", 1280, 900, "light"), ("dark", 1280, 900, "dark"), ("narrow", 390, 844, "light")]
    {
        browser.look(width, height, scheme)?;
        let wrong = browser.run(AUDIT)?;
        ensure!(wrong == json!([]), "{name}: {wrong:#}");
        let over = browser.run(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth;",
        )?;
        ensure!(over == json!(0), "{name}: the page is {over} pixels too wide");
        browser.picture(&kept(&format!("{name}.png"))?)?;
    }
    browser.look(1280, 900, "light")
}

/// Who may see one namespace sees it, and is told what is missing.
fn one_namespace(browser: &Browser, token: &str) -> Result<()> {
    browser.run("document.querySelector('#sign-out').click();")?;
    browser.sees("document.activeElement.id === 'token'")?;
    browser.press(token)?;
    browser.press(ENTER)?;
    browser.sees(
        "document.querySelector('#limits-text').textContent.includes('anna may not list nodes')",
    )?;
    browser.sees("document.querySelector('#limits-text').textContent.includes('the pods of namespace vision')")?;
    browser
        .sees("document.querySelector('#pods-table').textContent.includes('vision/detector')")?;
    let hidden = browser.run("return document.querySelector('#cluster').hidden && !document.body.innerText.includes('nlp/');")?;
    ensure!(hidden == json!(true), "more is shown than may be seen");
    browser.run("document.querySelector('#waiting-list button').click();")?;
    browser
        .sees("document.querySelector('#story-body').textContent.includes('What would help')")?;
    browser.picture(&kept("limited.png")?)?;
    browser.press(ESCAPE)
}

/// Where a picture is left for people.
pub(crate) fn kept(name: &str) -> Result<PathBuf> {
    let target = std::env::current_exe()?;
    let folder = target.ancestors().nth(3).context("not in a target folder")?.join("dashboard");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(name))
}

async fn token(bed: &Bed, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.session.client(), "vision");
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(made.status.context("a token")?.token)
}

fn kubeconfig(bed: &Bed, token: &str) -> Result<PathBuf> {
    let path = bed.cluster.layout().kubeconfig();
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
    config["users"][0]["user"] = json!({"token": token});
    let path = path.with_extension("operator");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// `kubectl nanogpu dashboard`, and the address it printed.
struct Served {
    child: Child,
    address: String,
    /// Open for as long as it runs: it ends when nobody can read what it says.
    _said: BufReader<ChildStdout>,
}

impl Served {
    fn start(kubeconfig: &std::path::Path, server: &str) -> Result<Self> {
        let mut child = Command::new(testbed::built()?.join("kubectl-nanogpu"))
            .args(["dashboard", "--server", server, "--kubeconfig"])
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        let mut said = BufReader::new(child.stdout.take().context("stdout")?);
        said.read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned(), _said: said })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
