//! A quota as far as it matters for one pod.
//!
//! Every bind changes what a namespace has used, and with it the question that its next pod puts to
//! the nodes: thousands of answers would have to be found anew although they are the same. So a rule
//! that has more room than the pod can take is put as one without a limit, and a rule that has no
//! room for any of it as one that allows nothing. Only near its limit a quota is put as it is.

use std::borrow::Cow;

use model::{
    Allowance, Amount, Cap, ContainerRequest, Cores, Mebibytes, MemoryAsk, Node, Part, Request,
    Rule,
};

/// The most that one card of the cluster has, or more: what a part of a card comes to at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Largest {
    cores: Cores,
    memory: Mebibytes,
}

impl Largest {
    /// Takes the cards of `node` into account.
    pub fn see(&mut self, node: &Node) {
        for state in &node.devices {
            self.cores = self.cores.max(state.device.cores);
            self.memory = self.memory.max(state.device.memory);
        }
    }
}

/// An allowance that answers every question about `request` as `allowance` does.
pub fn slacken<'a>(
    allowance: &'a Allowance,
    request: &Request,
    largest: Largest,
) -> Cow<'a, Allowance> {
    if allowance.rules.is_empty() {
        return Cow::Borrowed(allowance);
    }
    let (least, most) = (least(request), most(request, largest));
    let rule = |rule: &Rule| {
        let with = |amount: &Amount| rule.cap.admits(&rule.used.plus(amount));
        let model = rule.model.clone();
        if with(&most) {
            Rule { model, cap: Cap::default(), used: Amount::default() }
        } else if with(&least) {
            rule.clone()
        } else {
            let nothing = Cap { cards: Some(0), ..Cap::default() };
            Rule { model, cap: nothing, used: Amount::default() }
        }
    };
    let rules = allowance.rules.iter().map(rule).collect();
    Cow::Owned(Allowance { rules, ..allowance.clone() })
}

/// What the pod takes at most: every container its cards to itself.
fn most(request: &Request, largest: Largest) -> Amount {
    let of = |container: &ContainerRequest| {
        let (cores, memory) = match container.part {
            Part::Whole => (largest.cores, largest.memory),
            Part::Share { cores, memory: MemoryAsk::Exact(memory) } => (cores, memory),
            Part::Share { cores, memory: MemoryAsk::Percent(_) } => (cores, largest.memory),
        };
        let cards = u64::from(container.cards);
        Amount {
            cards,
            cores: Cores(cores.0.saturating_mul(container.cards)),
            memory: Mebibytes(memory.0.saturating_mul(cards)),
        }
    };
    request.containers.iter().map(of).fold(Amount::default(), |sum, amount| sum.plus(&amount))
}

/// What a rule counts at least if it counts anything of the pod: a part of one card.
fn least(request: &Request) -> Amount {
    let cores = |container: &ContainerRequest| match container.part {
        Part::Whole => Cores::ZERO,
        Part::Share { cores, .. } => cores,
    };
    let cores = request.containers.iter().map(cores).min().unwrap_or(Cores::ZERO);
    Amount { cards: 1, cores, memory: Mebibytes(0) }
}

#[cfg(test)]
mod tests {
    use dialect::{Settings, read};
    use model::{CardModel, Hold, ModelPattern, Pod, Unlisted};

    use super::*;

    fn request(percent: &str) -> Request {
        let pod = format!(
            r#"{{"metadata":{{"name":"a","uid":"u"}},"spec":{{"containers":[
                {{"name":"c","resources":{{"limits":{{"nano-gpu/gpu-percent":"{percent}"}}}}}}]}}}}"#
        );
        let pod = Pod::from_json(&pod).unwrap();
        read(&pod, &Settings::default()).unwrap().unwrap().request
    }

    fn allowance(used: u32, cap: u32) -> Allowance {
        let rule = Rule {
            model: ModelPattern::new("T4"),
            cap: Cap { cores: Some(Cores(cap)), ..Cap::default() },
            used: Amount { cores: Cores(used), cards: 7, memory: Mebibytes(1) },
        };
        Allowance { rules: vec![rule], unlisted: Unlisted::Refused, pools: vec!["p".into()] }
    }

    const LARGEST: Largest = Largest { cores: Cores(100), memory: Mebibytes(16_384) };

    #[test]
    fn what_is_used_far_from_the_limit_makes_no_difference() {
        let asked = request("30");
        let slack = |used| slacken(&allowance(used, 1000), &asked, LARGEST).into_owned();
        assert_eq!(slack(0), slack(30));
        assert_eq!(slack(0), slack(970));
        assert_ne!(slack(0), slack(971), "no room any more");
        assert_eq!(slack(971), slack(1000));
        assert_eq!(slack(0).pools, ["p"]);
    }

    #[test]
    fn every_question_is_answered_as_before() {
        let model = |name: &str| CardModel::new(name);
        for percent in ["1", "30", "99", "100", "200"] {
            let asked = request(percent);
            for used in [0, 1, 70, 99, 100, 101, 199, 200, 201, 300] {
                let exact = allowance(used, 200);
                let slack = slacken(&exact, &asked, LARGEST);
                for container in &asked.containers {
                    let cores = match container.part {
                        Part::Whole => Cores(100),
                        Part::Share { cores, .. } => cores,
                    };
                    let hold = Hold { cores, memory: Mebibytes(5), whole: false };
                    for name in ["T4", "A100"] {
                        let model = model(name);
                        let wanted = vec![(&model, hold); container.cards as usize];
                        let said = (exact.admits(&wanted), slack.admits(&wanted));
                        assert_eq!(said.0, said.1, "{percent} {used} {name}");
                    }
                }
            }
        }
    }
}
