//! Properties of the planner, on passes and ceilings of any shape.

use proptest::prelude::*;

use super::*;

const MB: u64 = 1_000_000;

fn needs(context: usize, batch: Option<usize>) -> Needs {
    Needs {
        program: 5 * MB,
        tokenizer: MB,
        header: MB / 2,
        threads: 100_000,
        kv: context as u64 * 20_000,
        logits: 128_000,
        scores: 10_000,
        per_token: 100_000,
        before: 0,
        context,
        batch,
        modest: false,
    }
}

fn pieces(lengths: &[u64], placement: Placement) -> Vec<Piece> {
    lengths.iter().map(|&bytes| Piece { bytes, placement }).collect()
}

fn form() -> impl Strategy<Value = Form> {
    let copied = (1..12u64, prop_oneof![Just(1u64), Just(512), Just(4096)]);
    prop_oneof![
        copied.prop_map(|(slots, align)| Form::Copied { slots, align }),
        (0..20 * MB).prop_map(|window| Form::Mapped { window }),
    ]
}

fn streamed(outline: &Outline, pieces: &[Piece]) -> u64 {
    pieces.iter().zip(&outline.stays).filter(|(_, stays)| !**stays).map(|(piece, _)| piece.bytes).sum()
}

proptest! {
    /// The plan is never above its ceiling, and a refusal names a ceiling that works.
    #[test]
    fn ceilings_are_kept(
        lengths in prop::collection::vec(1..700_000u64, 1..200),
        form in form(),
        ceiling in 0..200 * MB,
        context in 1..2000usize,
        batch in prop::option::of(1..600usize),
        before in 0..30 * MB,
    ) {
        let needs = Needs { before, ..needs(context, batch) };
        let pieces = pieces(&lengths, Placement::Auto);
        match plan(&needs, form, &pieces, Ceiling::Bytes(ceiling), Order::Spread) {
            Ok(planned) => {
                prop_assert!(planned.ledger.total() <= ceiling);
                prop_assert!(planned.batch >= 1 && batch.is_none_or(|batch| batch == planned.batch));
            }
            Err(least) => {
                prop_assert!(least.total() > ceiling);
                let enough = Ceiling::Bytes(least.total());
                let planned = plan(&needs, form, &pieces, enough, Order::Spread);
                prop_assert!(planned.is_ok_and(|planned| planned.ledger.total() == least.total()));
                let asked = plan(&needs, form, &pieces, Ceiling::Least, Order::Spread);
                prop_assert!(asked.is_ok_and(|planned| planned.ledger == *least));
            }
        }
    }

    /// More memory never means more reading, a shorter batch, or another chunk that goes.
    #[test]
    fn more_memory_is_never_worse(
        lengths in prop::collection::vec(1..700_000u64, 1..200),
        form in form(),
        ceiling in 8 * MB..100 * MB,
        more in 0..30 * MB,
    ) {
        let needs = needs(300, None);
        let pieces = pieces(&lengths, Placement::Auto);
        let at = |ceiling| plan(&needs, form, &pieces, Ceiling::Bytes(ceiling), Order::Spread);
        if let Ok(before) = at(ceiling) {
            let after = at(ceiling + more);
            prop_assert!(after.is_ok(), "what fits, fits in more");
            let after = after.unwrap_or_else(|_| before.clone());
            prop_assert!(streamed(&after, &pieces) <= streamed(&before, &pieces));
            prop_assert!(before.stays.iter().zip(&after.stays).all(|(before, after)| !before || *after));
            prop_assert!(after.keeps_all() || after.batch >= before.batch);
        }
    }

    /// What is left of the ceiling is less than a chunk and a token: resident bytes fill it.
    #[test]
    fn ceilings_are_filled(lengths in prop::collection::vec(100_000..500_000u64, 50..300), ceiling in 12 * MB..120 * MB) {
        let pieces = pieces(&lengths, Placement::Auto);
        let form = Form::Copied { slots: 10, align: 4096 };
        if let Ok(planned) = plan(&needs(100, None), form, &pieces, Ceiling::Bytes(ceiling), Order::Spread)
            && !planned.keeps_all()
        {
            let others = planned.ledger.total() - planned.ledger.resident;
            let kept: u64 = lengths.iter().sum::<u64>() - streamed(&planned, &pieces);
            prop_assert!(kept as f64 >= 0.92 * (ceiling - others) as f64 - 700_000.0, "{:?}", planned.ledger);
        }
    }
}

#[test]
fn what_the_caller_says_of_a_part_holds() {
    let mut pieces = pieces(&[MB; 20], Placement::Auto);
    pieces[..5].iter_mut().for_each(|piece| piece.placement = Placement::Resident);
    pieces[15..].iter_mut().for_each(|piece| piece.placement = Placement::Stream);
    let form = Form::Copied { slots: 3, align: 1 };
    let needs = needs(10, None);
    let at = |ceiling| plan(&needs, form, &pieces, ceiling, Order::Spread);
    let kept = |planned: &Outline| planned.stays.iter().filter(|stays| **stays).count();
    let least = at(Ceiling::Least).expect("no ceiling to be above");
    assert_eq!(least.stays, (0..20).map(|i| i < 5).collect::<Vec<_>>());
    let most = at(Ceiling::Bytes(1 << 40)).expect("room for all");
    assert_eq!(most.stays, (0..20).map(|i| i < 15).collect::<Vec<_>>());
    let some = at(Ceiling::Bytes(least.ledger.total() + 4 * MB)).expect("room for some more");
    assert!((7..10).contains(&kept(&some)), "{some:?}");
    assert!(at(Ceiling::Bytes(least.ledger.total() - 1)).is_err(), "what must stay is not given up");
    let unknown = at(Ceiling::Unknown).expect("no ceiling to be above");
    assert_eq!(unknown.stays, least.stays);
}

#[test]
fn chunks_stay_evenly_over_the_pass() {
    let pieces = pieces(&[MB; 400], Placement::Auto);
    let form = Form::Copied { slots: 2, align: 1 };
    let needs = needs(10, Some(1));
    let at = |megabytes: u64, order| {
        let planned = plan(&needs, form, &pieces, Ceiling::Bytes(megabytes * MB), order);
        planned.expect("room").stays
    };
    for megabytes in [30, 100, 200, 300, 380] {
        let stays = at(megabytes, Order::Spread);
        let share = stays.iter().filter(|stays| **stays).count() as f64 / 400.0;
        let mut kept = 0.0;
        for (i, stays) in stays.iter().enumerate() {
            kept += f64::from(u8::from(*stays));
            assert!((kept - share * (i + 1) as f64).abs() < 3.0, "{megabytes} MB at {i}");
        }
        let prefix = at(megabytes, Order::Prefix);
        assert!(prefix.is_sorted_by(|a, b| a >= b), "from the beginning on");
    }
}

#[test]
fn batches_are_as_long_as_is_of_use() {
    let pieces = pieces(&[MB; 50], Placement::Auto);
    let form = Form::Copied { slots: 2, align: 1 };
    let batch =
        |needs: &Needs, ceiling| plan(needs, form, &pieces, ceiling, Order::Spread).expect("room").batch;
    let long = needs(4000, None);
    assert_eq!(batch(&long, Ceiling::Least), FEWEST);
    assert_eq!(batch(&long, Ceiling::Bytes(1 << 40)), MOST_RESIDENT);
    assert!((FEWEST + 1..MOST_RESIDENT).contains(&batch(&long, Ceiling::Bytes(120 * MB))));
    assert_eq!(batch(&needs(5, None), Ceiling::Least), 5, "no longer than the context");
    assert_eq!(batch(&needs(4000, Some(1000)), Ceiling::Bytes(1 << 40)), 1000, "as the caller says");
}

#[test]
fn loading_counts_as_much_as_running() {
    let pieces = pieces(&[MB; 50], Placement::Auto);
    let form = Form::Copied { slots: 2, align: 1 };
    let needs = Needs { before: 30 * MB, ..needs(10, None) };
    let least = plan(&needs, form, &pieces, Ceiling::Bytes(29 * MB), Order::Spread).expect_err("too little");
    assert_eq!(least.total(), 30 * MB);
    let planned = plan(&needs, form, &pieces, Ceiling::Bytes(30 * MB), Order::Spread).expect("just enough");
    assert!(
        planned.ledger.resident > 10 * MB,
        "what loading took is free for what stays: {:?}",
        planned.ledger
    );
    assert_eq!(planned.ledger.total(), 30 * MB);
}
