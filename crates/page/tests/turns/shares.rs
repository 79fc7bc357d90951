//! Who asked for so much gets so much.

use proptest::prelude::*;

use crate::card::{Card, Manner, Plan, SECOND};

const MS: u64 = 1_000_000;

fn honest(tenant: usize, kernels: (u64, u64)) -> Plan {
    Plan { tenant, kernels, manner: Manner::Honest, at_work: (0, u64::MAX) }
}

/// Runs containers with hard shares, a process each, and says what they got.
fn got(shares: &[u32], kernels: &[(u64, u64)], seed: u64) -> Vec<u64> {
    let hard: Vec<(u32, u32)> = shares.iter().map(|share| (*share, *share)).collect();
    let plans: Vec<Plan> =
        (0..shares.len()).map(|tenant| honest(tenant, kernels[tenant % kernels.len()])).collect();
    Card::new(&hard, &plans, seed).run(10 * SECOND)
}

#[track_caller]
fn assert_close(shares: &[u32], got: &[u64]) {
    for (share, got_one) in shares.iter().zip(got) {
        let asked = u64::from(*share) * 100;
        assert!(got_one.abs_diff(asked) <= 100, "asked {shares:?}, got {got:?} hundredths");
    }
}

const KERNELS: [(u64, u64); 4] =
    [(1_000, 1_000), (MS, MS), (MS / 10, 19 * MS / 10), (10 * MS, 10 * MS)];

#[test]
fn alone_within_a_point() {
    for share in [10, 30, 50, 80] {
        for kernels in KERNELS {
            assert_close(&[share], &got(&[share], &[kernels], 7));
        }
    }
}

#[test]
fn in_pairs_within_a_point() {
    for pair in [[30, 50], [10, 80], [60, 30]] {
        for one in KERNELS {
            for two in KERNELS {
                let got = got(&pair, &[one, two], 7);
                assert_close(&pair, &got);
            }
        }
    }
}

#[test]
fn in_fives_within_a_point() {
    for five in [[10, 10, 10, 10, 10], [10, 10, 20, 20, 30], [30, 10, 10, 10, 30]] {
        for seed in 1..6 {
            assert_close(&five, &got(&five, &KERNELS, seed));
        }
    }
}

#[test]
fn two_processes_of_a_container_share_what_it_has() {
    let plans = [honest(0, KERNELS[1]), honest(0, KERNELS[2]), honest(1, KERNELS[1])];
    let got = Card::new(&[(30, 30), (50, 50)], &plans, 3).run(10 * SECOND);
    assert_close(&[30, 50], &got);
}

#[test]
fn a_soft_container_takes_the_idle_rest_and_gives_it_back() {
    let away = Plan { at_work: (5 * SECOND, 10 * SECOND), ..honest(1, (MS, MS)) };
    let mut card = Card::new(&[(30, 90), (50, 50)], &[honest(0, (MS, MS)), away], 5);
    let alone = card.run(5 * SECOND);
    assert!(alone[0] > 8800 && alone[0] <= 9000, "{alone:?}");
    card.run(SECOND / 2);
    let shared = card.run(4 * SECOND);
    assert!(shared[1] >= 4900, "what is owed comes first: {shared:?}");
    assert!(shared[0] >= 3000 && shared[0] + shared[1] > 9500, "the rest is used: {shared:?}");
}

#[test]
fn soft_containers_that_both_want_have_their_shares() {
    let plans = [honest(0, (MS, MS)), honest(1, (10 * MS, 10 * MS))];
    let got = Card::new(&[(30, 100), (60, 100)], &plans, 5).run(10 * SECOND);
    assert!(got[0] >= 2900 && got[1] >= 5900, "{got:?}");
}

#[test]
fn a_changed_limit_holds_at_once() {
    let mut card =
        Card::new(&[(30, 30), (50, 50)], &[honest(0, KERNELS[1]), honest(1, KERNELS[1])], 5);
    assert_close(&[30, 50], &card.run(5 * SECOND));
    card.set(0, 60, 60);
    card.set(1, 20, 20);
    card.run(SECOND / 4);
    assert_close(&[60, 20], &card.run(5 * SECOND));
}

#[test]
fn who_never_gives_a_turn_back_costs_others_only_the_bound() {
    for manner in [Manner::Keeps, Manner::Stopped, Manner::Lies] {
        let hostile = Plan { manner, ..honest(0, (MS, MS)) };
        let mut card = Card::new(&[(30, 30), (50, 50)], &[hostile, honest(1, (MS, MS))], 9);
        card.run(SECOND);
        let got = card.run(10 * SECOND);
        assert!(got[1] >= 4900 && got[1] <= 5100, "{manner:?}: {got:?}");
        let longest = card.longest_wait(1);
        assert!(longest <= 320 * MS, "{manner:?}: waited {longest}");
        if manner != Manner::Lies {
            assert!(card.purse(0).distrust() > 0 && longest < 100 * MS, "{manner:?} {longest}");
        }
    }
}

#[test]
fn a_crowd_of_processes_that_die_costs_others_nothing() {
    for seed in 1..6 {
        let dies = Plan { manner: Manner::Dies, ..honest(0, (MS, MS)) };
        let mut plans = vec![dies; 12];
        plans.push(honest(1, (MS, MS)));
        let mut card = Card::new(&[(30, 30), (50, 50)], &plans, seed);
        card.run(SECOND);
        let got = card.run(10 * SECOND);
        assert_close(&[50], &got[1..]);
        // They pay for the card that they kept from others, and so get little of it.
        assert!(got[0] > 0 && got[0] < 1000, "{got:?}");
        let longest = card.longest_wait(12);
        assert!(longest <= 100 * MS, "waited {longest}");
    }
}

#[test]
fn who_had_the_card_to_itself_does_not_owe_it_for_an_answer_that_is_late() {
    let slow = Plan { manner: Manner::Slow, ..honest(0, (MS, MS)) };
    let mut plans = vec![slow];
    // Others come for a moment, twice a second.
    let at = |visit: u64| (visit * SECOND / 2, visit * SECOND / 2 + 20 * MS);
    plans.extend((1..22).map(|visit| Plan { at_work: at(visit), ..honest(1, (MS, MS)) }));
    let mut card = Card::new(&[(50, 50), (30, 30)], &plans, 3);
    card.run(SECOND);
    let got = card.run(10 * SECOND);
    assert_close(&[50], &got[..1]);
    assert!(card.longest_wait(0) <= 100 * MS, "waited {}", card.longest_wait(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn hard_shares_are_never_exceeded_and_nobody_starves(
        shares in prop::collection::vec(5..40_u32, 1..6),
        lengths in prop::collection::vec((1_000..20 * MS, 0..5 * MS), 6),
        seed in any::<u64>(),
        latency in 20_000..1_000_000_u64,
    ) {
        let hard: Vec<(u32, u32)> = shares.iter().map(|share| (*share, *share)).collect();
        let plans: Vec<Plan> = (0..shares.len())
            .map(|tenant| honest(tenant, (lengths[tenant].0, lengths[tenant].0 + lengths[tenant].1)))
            .collect();
        let got = Card::new(&hard, &plans, seed).with_latency(latency).run(10 * SECOND);
        let asked: u32 = shares.iter().sum();
        for (share, got) in shares.iter().zip(&got) {
            prop_assert!(*got <= u64::from(*share) * 100 + 100, "{shares:?} {got:?}");
            // Where all fits with room for handing over, all is had.
            if asked <= 85 {
                prop_assert!(got + 100 >= u64::from(*share) * 100, "{:?} got {}", shares, got);
            } else {
                prop_assert!(got * u64::from(asked) >= u64::from(*share) * 100 * 80, "{:?} starves with {}", shares, got);
            }
        }
    }

    #[test]
    fn what_is_charged_is_what_was_used(share in 10..60_u32, seed in any::<u64>(), length in 1_000..30 * MS) {
        let plans = [honest(0, (length, length)), honest(1, (MS, MS))];
        let mut card = Card::new(&[(share, share), (30, 30)], &plans, seed);
        let got = card.run(10 * SECOND);
        let came = i64::from(share) * 100_000_000;
        let used = i64::try_from(got[0]).unwrap() * 1_000_000;
        // What is neither used nor in the purse was cut off at its brim, or is in flight.
        let left = card.purse(0).credit();
        prop_assert!((came - used - left).abs() < 100_000_000, "{came} {used} {left}");
    }
}
