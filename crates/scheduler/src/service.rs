//! The extender as one thing: a request's bytes in, the answer's bytes out.
//!
//! Knows no HTTP beyond the number of an answer, so that another transport, or a plugin inside
//! kube-scheduler, can call it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dialect::{Asked, Settings, read};
use kubeapi::{Clock, SeenPod};
use model::{Allowance, Pod, PodId, PodUid, Request, Snapshot};
use placement::{Ask, Policy};
use serde::Serialize;

use crate::decisions::{Decision, Decisions};
use crate::metrics::{Outcome, Reason, Shared, Verb};
use crate::preempting::{Preempting, promised};
use crate::state::{Handle, Picture};
use crate::verbs::bind::{BindError, Binder, BoundPod};
use crate::verbs::filter::{At, Filtered, filter};
use crate::verbs::memo::Memo;
use crate::verbs::names::{Listed, Names};
use crate::verbs::offer::{MANY, Offer, offer};
use crate::verbs::predicates::Predicates;
use crate::verbs::preempt::preempt;
use crate::verbs::prioritize::{Prioritized, prioritize};
use crate::verbs::slack::slacken;
use crate::verbs::wire::{
    Args, BindArgs, BindResult, FilterResult, PreemptArgs, PreemptResult, Scores, sentence,
};
use crate::waking::{Waiting, Waits};

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
}

impl Answer {
    fn json(status: u16, value: &impl Serialize) -> Self {
        // Maps with text keys only: writing them cannot fail.
        Self { status, body: serde_json::to_vec(value).unwrap_or_default() }
    }
}

/// The extender.
#[derive(Debug)]
pub struct Service {
    /// The writer.
    pub handle: Handle,
    /// Which dialects are spoken, and how.
    pub settings: Arc<Settings>,
    /// How nodes are ranked and cards chosen.
    pub policy: Policy,
    /// Pods we refused.
    pub waiting: Arc<Waiting>,
    /// Evicts where kube-scheduler never asks.
    pub preempting: Arc<Preempting>,
    /// Binds.
    pub binder: Arc<Binder>,
    /// Decides in filter, for users of gpu-admission.
    pub predicates: Arc<Predicates>,
    /// What was decided last.
    pub decisions: Arc<Decisions>,
    /// What is counted.
    pub metrics: Shared,
    /// What was found out before.
    pub memo: Memo,
    /// The pod that was read last.
    pub last: LastRead,
    /// The clock.
    pub clock: Clock,
    /// How many of the nodes that can take a pod are named to kube-scheduler.
    pub offer: Offer,
    /// Whether a failed bind answers 500, as the systems we replace did.
    pub strict_bind_status: bool,
}

/// A pod of a request, read.
enum Asks {
    /// It asks for no card of ours.
    Nothing,
    /// It can never run as written.
    Never(PodId, dialect::Refusal),
    /// It asks.
    Cards(Arc<Asked>),
}

/// The pod that was read last: filter and prioritize are asked about the same one after another.
#[derive(Debug, Default)]
pub struct LastRead {
    // Held for a comparison only.
    read: Mutex<(String, Option<Arc<Asked>>)>,
}

impl LastRead {
    /// What the pod of this text asks, if it is the same.
    fn of(&self, text: &str) -> Option<Arc<Asked>> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.1.clone().filter(|_| read.0 == text)
    }

    fn keep(&self, text: &str, asked: &Arc<Asked>) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        // Into the same memory.
        read.0.clear();
        read.0.push_str(text);
        read.1 = Some(asked.clone());
    }
}

/// What is kept of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remember {
    /// Nothing.
    Nothing,
    /// What we decided.
    Decision,
    /// That another replica said no.
    Refusal,
}

const NO_POD: &str = "the request has no pod";
const NO_NODES: &str = "the request has neither NodeNames nor Nodes";

impl Service {
    /// Which nodes can take the pod. `dry`: nothing is remembered of it.
    pub fn filter(&self, body: &[u8], dry: bool) -> Answer {
        self.filtered(body, if dry { Remember::Nothing } else { Remember::Decision }).0
    }

    /// Which nodes can take the pod, and the pod itself if none can.
    pub fn filter_noting(&self, body: &[u8]) -> (Answer, Option<PodUid>) {
        self.filtered(body, Remember::Decision)
    }

    /// Takes notice of a pod that another replica has refused, whatever we would say.
    pub fn refused_elsewhere(&self, body: &[u8]) -> Answer {
        self.filtered(body, Remember::Refusal).0
    }

    fn filtered(&self, body: &[u8], remember: Remember) -> (Answer, Option<PodUid>) {
        let _timed = self.time("filter");
        let args: Args = match serde_json::from_slice(body) {
            Ok(args) => args,
            Err(error) => return (unread(&error), None),
        };
        let Some(names) = names(&args) else {
            return (Answer::json(200, &FilterResult::error(NO_NODES.to_owned())), None);
        };
        let asked = match self.asks(&args) {
            Ok(Asks::Cards(asked)) => asked,
            Ok(Asks::Nothing) => {
                let body = all(&args).write(args.is_plain());
                return (Answer { status: 200, body }, None);
            }
            Ok(Asks::Never(pod, refusal)) => {
                if remember == Remember::Decision {
                    self.metrics.never.inc();
                    tracing::info!(pod = %pod, why = %refusal, "refused for good");
                }
                return (Answer::json(200, &none(&args, &names, &refusal.to_string())), None);
            }
            Err(error) => return (Answer::json(200, &FilterResult::error(error)), None),
        };
        let picture = self.handle.picture();
        let seen = picture.seen_by(&asked.request);
        let allowance = self.slack(&seen, &asked.request);
        let ask = Ask { allowance: &allowance, ..Ask::new(&seen, &asked.request, self.policy) };
        let filtered = filter(&seen, &ask, &names, &self.memo);
        let fits = filtered.fits.len();
        let is_minded = self.handle.pods.are_minded(&asked.request.pod.namespace);
        let most = args.pod.map_or(0, |raw| self.offer.of(fits, raw.get(), is_minded));
        let sent = (&*self.handle.sent, self.clock.now());
        let offered = offer(&seen, &ask, &filtered, most, &self.memo, sent);
        if let [only] = &*offered
            && remember == Remember::Decision
        {
            // There it goes, without another question.
            self.handle.sent.send(&seen.nodes()[only.node()], &ask, sent.1);
        }
        let (failed, failed_for_good) = filtered.reasons(&names);
        let result = FilterResult {
            nodes: args
                .nodes
                .as_ref()
                .map(|nodes| offered.iter().map(|fits| nodes.items[fits.place()].1).collect()),
            names: args.names.as_ref().map(|given| {
                if offered.len() == names.len() {
                    return given.all();
                }
                Listed::These(offered.iter().map(|fits| names[fits.place()]).collect())
            }),
            failed,
            failed_for_good,
            error: String::new(),
        };
        let answer = Answer { status: 200, body: result.write(args.is_plain()) };
        drop(result);
        let refused = filtered.fits.is_empty().then(|| asked.request.pod.uid.clone());
        let may_preempt = || args.pod.is_some_and(|raw| may_preempt(raw.get()));
        match remember {
            Remember::Nothing => {}
            Remember::Refusal if refused.is_none() => {
                // kube-scheduler was told no, and tries again only if we make it.
                let (names, now) = (filtered.asked_names(&names), self.clock.now());
                let waits = Waits::elsewhere(asked.clone(), names, may_preempt(), now);
                self.waiting.refused(waits);
            }
            Remember::Decision | Remember::Refusal => {
                self.note("filter", &asked, (&filtered, &names), &picture, may_preempt);
            }
        }
        (answer, refused)
    }

    /// Which of the nodes is best.
    pub fn prioritize(&self, body: &[u8]) -> Answer {
        let _timed = self.time("prioritize");
        let args: Args = match serde_json::from_slice(body) {
            Ok(args) => args,
            Err(error) => {
                return plain(400, &format!("the request is not what it should be: {error}"));
            }
        };
        let Some(names) = names(&args) else { return plain(400, NO_NODES) };
        let scores = match self.asks(&args) {
            Ok(Asks::Cards(asked)) => {
                let picture = self.handle.picture();
                let seen = picture.seen_by(&asked.request);
                let allowance = self.slack(&seen, &asked.request);
                let ask =
                    Ask { allowance: &allowance, ..Ask::new(&seen, &asked.request, self.policy) };
                let sent = (&*self.handle.sent, self.clock.now());
                let Prioritized { scores, best } =
                    prioritize(&seen, &ask, &names, &self.memo, sent);
                if let Some(best) = best {
                    self.handle.sent.send(&seen.nodes()[best], &ask, sent.1);
                }
                scores
            }
            Ok(Asks::Nothing | Asks::Never(..)) => vec![0; names.len()],
            Err(error) => return plain(400, &error),
        };
        // Who is not listed has no points: of many nodes those are not sent.
        let all = names.len() <= MANY;
        let scores = names.iter().copied().zip(scores).filter(|(_, score)| all || *score > 0);
        let scores = Scores(scores.collect());
        Answer { status: 200, body: scores.write(args.is_plain()) }
    }

    /// Binds the pod.
    pub async fn bind(&self, body: &[u8]) -> (Answer, Option<BoundPod>) {
        let _timed = self.time("bind");
        let args: BindArgs = match serde_json::from_slice(body) {
            Ok(args) => args,
            Err(error) => {
                let error = format!("the request is not what it should be: {error}");
                return (Answer::json(self.failed(), &BindResult { error }), None);
            }
        };
        let bound = self.binder.bind(&args).await;
        self.handle.sent.forget(&args.pod_uid);
        let outcome = match &bound {
            Ok(_) => "bound",
            Err(error) => error.code(),
        };
        self.metrics.binds.get_or_create(&Outcome { outcome }).inc();
        match bound {
            Ok(bound) => {
                self.waiting.forget(&bound.pod.uid);
                let placement = &bound.placement;
                tracing::info!(pod = %bound.pod, node = args.node, placement, "bound");
                (Answer::json(200, &BindResult::default()), Some(bound))
            }
            Err(error) => {
                let pod = format!("{}/{}", args.pod_namespace, args.pod_name);
                tracing::info!(pod, node = args.node, why = %error, "not bound");
                let status = if error == BindError::NotLeading { 503 } else { self.failed() };
                (Answer::json(status, &BindResult { error: sentence(&error.to_string()) }), None)
            }
        }
    }

    /// Whom to evict on the nodes kube-scheduler would clear.
    pub fn preempt(&self, body: &[u8]) -> Answer {
        let _timed = self.time("preempt");
        let args: PreemptArgs = match serde_json::from_slice(body) {
            Ok(args) => args,
            Err(error) => {
                return plain(400, &format!("the request is not what it should be: {error}"));
            }
        };
        let Some(raw) = args.pod else { return plain(400, NO_POD) };
        let asked = match self.read(raw.get()) {
            Ok(Asks::Cards(asked)) => asked,
            // Not ours to judge, or never to run: no node is a candidate by our word.
            Ok(Asks::Nothing | Asks::Never(..)) => {
                return Answer::json(200, &PreemptResult::default());
            }
            Err(error) => return plain(400, &error),
        };
        if !may_preempt(raw.get()) {
            return Answer::json(200, &PreemptResult::default());
        }
        let (uid, now) = (&asked.request.pod.uid, self.clock.now());
        self.preempting.asked_by_scheduler(uid, now);
        let picture = self.handle.picture();
        // Others are leaving for it: no second set, on whatever node.
        if self.preempting.is_carried_out(uid, now) || promised(&picture, uid).is_some() {
            return Answer::json(200, &PreemptResult::default());
        }
        let seen = picture.seen_by(&asked.request);
        let ask = Ask::new(&seen, &asked.request, self.policy);
        let result = preempt(&seen, &ask, &self.handle.pods.budgets(), &args.victims);
        if !result.node_name_to_meta_victims.is_empty() {
            self.preempting.told_scheduler(uid, now);
        }
        Answer::json(200, &result)
    }

    /// Filters, decides for one node, and writes that onto the pod: for users of gpu-admission.
    pub async fn predicate(&self, body: &[u8]) -> Answer {
        let _timed = self.time("predicates");
        if !self.binder.leads() {
            return Answer::json(200, &FilterResult::error(BindError::NotLeading.to_string()));
        }
        let args: Args = match serde_json::from_slice(body) {
            Ok(args) => args,
            Err(error) => return unread(&error),
        };
        let Some(names) = names(&args) else {
            return Answer::json(200, &FilterResult::error(NO_NODES.to_owned()));
        };
        let asked = match self.asks(&args) {
            Ok(Asks::Cards(asked)) => asked,
            Ok(Asks::Nothing) => return Answer::json(200, &all(&args)),
            Ok(Asks::Never(_, refusal)) => {
                self.metrics.never.inc();
                return Answer::json(200, &none(&args, &names, &refusal.to_string()));
            }
            Err(error) => return Answer::json(200, &FilterResult::error(error)),
        };
        let pod = &asked.request.pod;
        if self.binder.binds(&pod.uid) {
            let error = format!("a binding of pod {pod} is under way");
            return Answer::json(200, &FilterResult::error(error));
        }
        let (best, filtered, picture) = self.best(&asked, &names);
        let (mut failed, failed_for_good) = filtered.reasons(&names);
        let mut result = FilterResult {
            nodes: args.nodes.as_ref().map(|_| Vec::new()),
            names: args.names.as_ref().map(|_| Listed::These(Vec::new())),
            ..FilterResult::default()
        };
        if let Some(best) = best {
            let seen = args.pod.and_then(|raw| SeenPod::from_json(raw.get()).ok());
            let Some(seen) = seen else {
                return Answer::json(200, &FilterResult::error(NO_POD.to_owned()));
            };
            let node = filtered.name(best).clone();
            let decided = self.predicates.predicate(asked.clone(), Arc::new(seen), node.clone());
            match decided.await {
                Ok(()) => {
                    let place = best.place();
                    tracing::info!(pod = %asked.request.pod, node = %node, "predicated");
                    if let (Some(list), Some(nodes)) = (&mut result.nodes, &args.nodes) {
                        list.push(nodes.items[place].1);
                    }
                    if let Some(list) = &mut result.names {
                        *list = Listed::These(vec![names[place]]);
                    }
                    let others = filtered.fits.iter().filter(|other| other.place() != place);
                    failed.extend(others.map(|other| {
                        (names[other.place()], "the pod has been promised to another node".into())
                    }));
                }
                Err(error) => {
                    return Answer::json(200, &FilterResult::error(error.to_string()));
                }
            }
        }
        result.failed = failed;
        result.failed_for_good = failed_for_good;
        let answer = Answer::json(200, &result);
        drop(result);
        self.note("predicates", &asked, (&filtered, &names), &picture, || false);
        answer
    }

    /// The best node, if any fits.
    fn best(&self, asked: &Asked, names: &[&str]) -> (Option<At>, Filtered, Arc<Picture>) {
        let picture = self.handle.picture();
        let seen = picture.seen_by(&asked.request);
        let allowance = self.slack(&seen, &asked.request);
        let ask = Ask { allowance: &allowance, ..Ask::new(&seen, &asked.request, self.policy) };
        let filtered = filter(&seen, &ask, names, &self.memo);
        let sent = (&*self.handle.sent, self.clock.now());
        let best = offer(&seen, &ask, &filtered, 1, &self.memo, sent).first().copied();
        (best, filtered, picture)
    }

    /// What the pod's namespace may take, as far as it matters for this pod.
    fn slack<'a>(&self, seen: &'a Snapshot, request: &Request) -> Cow<'a, Allowance> {
        let allowance = seen.allowance(&request.pod.namespace);
        if allowance.rules.is_empty() {
            return Cow::Borrowed(allowance);
        }
        slacken(allowance, request, self.memo.largest(seen))
    }

    /// Remembers what was decided: for waking, for preempting, and for whoever asks why.
    fn note(
        &self,
        verb: &'static str,
        asked: &Arc<Asked>,
        (filtered, names): (&Filtered, &[&str]),
        picture: &Arc<Picture>,
        may_preempt: impl FnOnce() -> bool,
    ) {
        let pod = &asked.request.pod;
        let refused = filtered.codes();
        for (reason, count) in &refused {
            let counter = self.metrics.refusals.get_or_create(&Reason { reason });
            counter.inc_by(*count as u64);
        }
        let (nodes, fits) = (filtered.fits.len() + filtered.refused.len(), filtered.fits.len());
        let summary =
            if fits == 0 { filtered.summary() } else { format!("{fits} of {nodes} nodes fit") };
        tracing::info!(pod = %pod, uid = %pod.uid, verb, nodes, fits, summary, "decided");
        if fits == 0 {
            let now = self.clock.now();
            let names = filtered.refused_names(names);
            let waits = Waits::new(asked.clone(), names, may_preempt(), picture.clone(), now);
            self.waiting.refused(waits);
        } else {
            // It is about to be bound, or kube-scheduler tries it again by itself.
            self.waiting.forget(&pod.uid);
        }
        let decision = Decision {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
            verb,
            at: self.clock.wall().0 / 1_000_000_000,
            nodes,
            fits,
            refused,
            summary,
        };
        self.decisions.note(pod, decision);
    }

    fn asks(&self, args: &Args) -> Result<Asks, String> {
        let text = args.pod.ok_or_else(|| NO_POD.to_owned())?.get();
        if let Some(asked) = self.last.of(text) {
            return Ok(Asks::Cards(asked));
        }
        let asks = self.read(text)?;
        if let Asks::Cards(asked) = &asks {
            self.last.keep(text, asked);
        }
        Ok(asks)
    }

    fn read(&self, text: &str) -> Result<Asks, String> {
        let pod = Pod::from_json(text).map_err(|error| {
            let cause = std::error::Error::source(&error);
            cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        })?;
        Ok(match read(&pod, &self.settings) {
            Ok(None) => Asks::Nothing,
            Ok(Some(asked)) => Asks::Cards(Arc::new(asked)),
            Err(refusal) => Asks::Never(pod.id, refusal),
        })
    }

    fn failed(&self) -> u16 {
        if self.strict_bind_status { 500 } else { 200 }
    }

    fn time(&self, verb: &'static str) -> Timed<'_> {
        Timed { service: self, verb, start: Instant::now() }
    }
}

/// Observes how long a verb took when it ends.
struct Timed<'a> {
    service: &'a Service,
    verb: &'static str,
    start: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let verbs = &self.service.metrics.verbs;
        verbs.get_or_create(&Verb { verb: self.verb }).observe(self.start.elapsed().as_secs_f64());
    }
}

/// The names asked about, in whichever form.
fn names<'a>(args: &'a Args) -> Option<Cow<'a, [&'a str]>> {
    if let Some(nodes) = &args.nodes {
        return Some(nodes.items.iter().map(|(name, _)| &**name).collect());
    }
    args.names.as_ref().map(Names::list)
}

/// Everything passes.
fn all<'a>(args: &'a Args) -> FilterResult<'a> {
    FilterResult {
        nodes: args.nodes.as_ref().map(|nodes| nodes.items.iter().map(|(_, raw)| *raw).collect()),
        names: args.names.as_ref().map(Names::all),
        ..FilterResult::default()
    }
}

/// Nothing passes, and never will.
fn none<'a>(args: &Args, names: &[&'a str], why: &str) -> FilterResult<'a> {
    let why = sentence(why);
    FilterResult {
        nodes: args.nodes.as_ref().map(|_| Vec::new()),
        names: args.names.as_ref().map(|_| Listed::These(Vec::new())),
        failed_for_good: names.iter().map(|name| (*name, why.clone().into())).collect(),
        ..FilterResult::default()
    }
}

fn unread(error: &serde_json::Error) -> Answer {
    let error = format!("the request is not what it should be: {error}");
    Answer::json(200, &FilterResult::error(error))
}

fn plain(status: u16, error: &str) -> Answer {
    Answer::json(status, &BTreeMap::from([("error", error)]))
}

fn may_preempt(pod: &str) -> bool {
    SeenPod::from_json(pod).is_ok_and(|seen| seen.may_preempt)
}
