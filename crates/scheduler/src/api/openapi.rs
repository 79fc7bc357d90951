//! The document that describes our API to programs.

use serde_json::{Value, json};

/// Every route with its sentence.
const ROUTES: [(&str, &str, &str); 14] = [
    ("/api/v1/nodes", "get", "Nodes, with their agents, hosts and problems"),
    ("/api/v1/devices", "get", "Cards, with what is free on each"),
    ("/api/v1/pods", "get", "Pods that hold or want cards"),
    ("/api/v1/shares", "get", "What each pod holds of each card"),
    ("/api/v1/quotas", "get", "What namespaces may hold and hold"),
    ("/api/v1/decisions", "get", "The last decision about each pod"),
    ("/api/v1/history", "get", "Use of the cluster over the last hour"),
    ("/api/v1/events", "get", "A stream (SSE) that says when to look again"),
    ("/api/v1/snapshot", "get", "The cluster as nanogpu-sim reads it"),
    ("/api/v1/why/{namespace}/{pod}", "get", "Why a pod waits, and what would help"),
    ("/api/v1/simulate", "post", "Would this pod fit, where, and whom would it displace"),
    ("/gpushare-scheduler/inspect", "get", "All nodes in gpushare's form"),
    ("/gpushare-scheduler/inspect/{node}", "get", "One node in gpushare's form"),
    ("/scheduler/status", "get", "Free cards in elastic-gpu's form"),
];

pub(super) fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for (path, method, summary) in ROUTES {
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters: Vec<Value> = names
            .map(|name| {
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
            })
            .collect();
        let mut operation = json!({
            "summary": summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "The answer", "content": {"application/json": {}}},
                "401": {"$ref": "#/components/responses/Error"},
                "403": {"$ref": "#/components/responses/Error"},
                "503": {"$ref": "#/components/responses/Error"},
            },
        });
        if method == "post" {
            operation["requestBody"] = json!({
                "description": "A pod's manifest", "required": true,
                "content": {"application/json": {}, "application/yaml": {}},
            });
        }
        paths.insert(path.to_owned(), json!({method: operation}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "nanogpu-scheduler", "version": env!("CARGO_PKG_VERSION")},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": {
                "description": "Why not",
                "content": {"application/json": {"schema": {
                    "type": "object", "properties": {"error": {"type": "string"}},
                }}},
            }},
        },
    })
}
