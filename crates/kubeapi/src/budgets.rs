//! Disruption budgets: which pods one protects, and how many of them may go now.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A budget of a namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct PodBudget {
    /// Its own UID.
    pub uid: String,
    /// The namespace whose pods it protects.
    pub namespace: String,
    /// Which of them.
    pub selector: LabelSelector,
    /// How many may be evicted now.
    pub allowed: u32,
}

impl PodBudget {
    pub(crate) fn new(budget: PodDisruptionBudget) -> Option<Self> {
        Some(Self {
            uid: budget.metadata.uid?,
            namespace: budget.metadata.namespace?,
            selector: budget.spec?.selector?,
            // A budget whose controller has not counted yet allows nothing.
            allowed: budget.status.map_or(0, |s| u32::try_from(s.disruptions_allowed).unwrap_or(0)),
        })
    }
}

/// Whether `selector` selects a pod with these labels.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let expressions = selector.match_expressions.iter().flatten();
    equal
        && expressions.into_iter().all(|wanted| {
            let value = labels.get(&wanted.key);
            let listed =
                || value.is_some_and(|v| wanted.values.iter().flatten().any(|each| each == v));
            match wanted.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                // Not known: better to protect a pod too many.
                _ => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_select_as_in_kubernetes() {
        let labels: BTreeMap<String, String> =
            [("app".to_owned(), "a".to_owned()), ("tier".to_owned(), "x".to_owned())].into();
        let table = [
            ("{}", true),
            (r#"{"matchLabels":{"app":"a"}}"#, true),
            (r#"{"matchLabels":{"app":"b"}}"#, false),
            (r#"{"matchExpressions":[{"key":"tier","operator":"In","values":["x","y"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["x"]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"none","operator":"NotIn","values":["x"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"none","operator":"Exists"}]}"#, false),
            (r#"{"matchExpressions":[{"key":"none","operator":"DoesNotExist"}]}"#, true),
        ];
        for (text, expected) in table {
            let selector: LabelSelector = serde_json::from_str(text).unwrap();
            assert_eq!(selects(&selector, &labels), expected, "{text}");
        }
    }
}
