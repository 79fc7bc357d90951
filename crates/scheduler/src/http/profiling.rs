//! `GET /debug/pprof/profile`: where the program spends its time, for those on the machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder, Symbol};
use telemetry::Stopping;

use super::gate::error;
use super::profile::{Spot, Stack, Timing, encode};

/// Samples a second of CPU time. Not 100: work that comes at every hundredth would always, or never,
/// be seen.
const HERTZ: i32 = 99;
/// Unwinding from a signal within these may wait for a lock that the interrupted code holds. Time
/// spent in them is therefore not seen.
const UNSEEN: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];
/// How long a profile takes if nobody says.
const USUAL: Duration = Duration::from_secs(30);

/// The route, if it was asked for and `address` is loopback: a profile costs time, and names our
/// insides. Nothing otherwise.
pub fn profile_routes(asked: bool, address: SocketAddr, stopping: &Stopping) -> Router {
    if !asked || !address.ip().is_loopback() {
        return Router::new();
    }
    let stopping = stopping.clone();
    let profile = move |Query(query): Query<BTreeMap<String, String>>| {
        let stopping = stopping.clone();
        async move {
            match seconds(query.get("seconds").map(String::as_str)) {
                Ok(time) => profile(time, stopping).await,
                Err(why) => error(StatusCode::BAD_REQUEST, &why),
            }
        }
    };
    Router::new().route("/debug/pprof/profile", get(profile))
}

fn seconds(text: Option<&str>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(USUAL) };
    let seconds = text.parse().ok().filter(|seconds| (1..=120).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("seconds is {text:?}; a profile takes 1 to 120 whole seconds"))
}

/// Looks for so long, or until we are asked to stop. A caller that goes away ends it too.
async fn profile(time: Duration, mut stopping: Stopping) -> Response {
    // The first one reads the program's debug information from the disk.
    let begin = || ProfilerGuardBuilder::default().frequency(HERTZ).blocklist(&UNSEEN).build();
    let looking = match tokio::task::spawn_blocking(begin).await {
        Ok(Ok(looking)) => looking,
        // The timer is the process's, so there is one profile at a time whatever the address.
        Ok(Err(pprof::Error::Running)) => {
            let why = "a profile is being taken; ask again when it is done";
            return error(StatusCode::CONFLICT, why);
        }
        Ok(Err(why)) => return failed(&why.to_string()),
        Err(why) => return failed(&why.to_string()),
    };
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = stopping.asked() => {}
    }
    // Names come out of debug information too.
    match tokio::task::spawn_blocking(move || encoded(looking)).await {
        Ok(Ok(bytes)) => {
            ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
        }
        Ok(Err(why)) => failed(&why.to_string()),
        Err(why) => failed(&why.to_string()),
    }
}

fn failed(why: &str) -> Response {
    let why = format!("a profile could not be taken: {why}");
    error(StatusCode::INTERNAL_SERVER_ERROR, &why)
}

fn encoded(looking: ProfilerGuard<'static>) -> Result<Vec<u8>, pprof::Error> {
    let report = looking.report().build_unresolved()?;
    // Looking for names is work too, and none of what was asked about.
    drop(looking);
    let stack = |(frames, seen)| {
        let frames = Frames::from(frames).frames;
        // The innermost frames are those of whoever looks, called from the signal.
        let frames = frames.iter().skip_while(|frame| frame.iter().any(looks));
        let frames = frames.map(|frame| frame.iter().map(spot).collect()).collect();
        Stack { frames, seen: i64::try_from(seen).unwrap_or(i64::MAX) }
    };
    let stacks: Vec<Stack> = report.data.into_iter().map(stack).collect();
    let timing = report.timing;
    let timing = Timing { began: timing.start_time, took: timing.duration, hertz: HERTZ };
    Ok(encode("nanogpu-scheduler", &stacks, timing))
}

fn looks(symbol: &Symbol) -> bool {
    let name = symbol.name();
    name.starts_with("backtrace::") || name.contains("pprof::")
}

fn spot(symbol: &Symbol) -> Spot {
    Spot {
        name: symbol.name(),
        system_name: symbol.sys_name().into_owned(),
        // Without debug information there is none, which the format says by an empty text.
        file: symbol.filename.as_deref().map(Path::to_string_lossy).unwrap_or_default().into(),
        line: symbol.lineno(),
    }
}
