//! What the tables are held to: the plain LRU cache of the `lru` crate, and each way of its own against the others.

use lru::LruCache;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Put(u8),
    PutLast(u8),
    Insert(u8),
    PutWithin(u8, usize),
    InsertWithin(u8, usize),
    Get(u8),
    Remove(u8),
    PopOldest,
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that they meet; more than are looked through without an index.
    let key = 0..32_u8;
    prop_oneof![
        4 => key.clone().prop_map(Step::Put),
        1 => key.clone().prop_map(Step::PutLast),
        4 => key.clone().prop_map(Step::Insert),
        4 => (key.clone(), 1..24_usize).prop_map(|(key, max)| Step::PutWithin(key, max)),
        4 => (key.clone(), 1..24_usize).prop_map(|(key, max)| Step::InsertWithin(key, max)),
        4 => key.clone().prop_map(Step::Get),
        2 => key.prop_map(Step::Remove),
        1 => Just(Step::PopOldest),
    ]
}

proptest! {
    #[test]
    fn it_forgets_in_the_order_of_the_lru_crate(steps in proptest::collection::vec(step(), 0..200)) {
        let mut ours = Recent::default();
        let mut theirs = LruCache::unbounded();
        // Two each have the part in common that the index keeps.
        let low = |number: u8| u64::from(number / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = |number: u8| Key(u128::from(number) << 64 | u128::from(low(number)));
        for (value, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(number) => {
                    ours.put(key(number), value);
                    theirs.put(key(number), value);
                }
                Step::PutLast(number) => {
                    ours.put_last(key(number), value);
                    theirs.put(key(number), value);
                    theirs.demote(&key(number));
                }
                Step::Insert(number) => {
                    let theirs = theirs.get_or_insert_mut(key(number), || value);
                    prop_assert_eq!(ours.get_or_insert_with(key(number), || value), theirs);
                }
                Step::PutWithin(number, max) => {
                    ours.put_within(key(number), value, NonZeroUsize::new(max).unwrap());
                    theirs.put(key(number), value);
                    while theirs.len() > max {
                        theirs.pop_lru();
                    }
                }
                Step::InsertWithin(number, max) => {
                    let ours = *ours.get_or_insert_within(key(number), NonZeroUsize::new(max).unwrap(), || value);
                    prop_assert_eq!(ours, *theirs.get_or_insert_mut(key(number), || value));
                    while theirs.len() > max {
                        theirs.pop_lru();
                    }
                }
                Step::Get(number) => prop_assert_eq!(ours.get(key(number)), theirs.get_mut(&key(number))),
                Step::Remove(number) => prop_assert_eq!(ours.remove(key(number)), theirs.pop(&key(number))),
                Step::PopOldest => prop_assert_eq!(ours.pop_oldest(), theirs.pop_lru()),
            }
            prop_assert_eq!(ours.len(), theirs.len());
            prop_assert_eq!(ours.oldest(), theirs.peek_lru().map(|(key, value)| (*key, value)));
            for number in 0..32 {
                prop_assert_eq!(ours.peek(key(number)), theirs.peek(&key(number)));
            }
        }
        while let Some(oldest) = ours.pop_oldest() {
            prop_assert_eq!(Some(oldest), theirs.pop_lru());
        }
        prop_assert!(theirs.is_empty() && ours.slots.capacity() <= 2 * SCANNED);
    }
}
