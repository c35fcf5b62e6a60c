//! What decoding costs: `cargo bench -p denizen-tests --bench decode`.
//!
//! Pods, Services and EndpointSlices as a cluster has them, each in JSON and in protobuf: bytes,
//! processor time and allocations for one object. It prints, and asserts nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use denizen_fixture::protobuf;
use denizen_object::{Decoder, ObjectKind, RawObject};
use denizen_tests::bench::objects::{pod, service, slice};
use denizen_tests::bench::{Bench, Sizes, processor_time};
use serde_json::Value;

/// The system's allocator, which counts.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: the system's allocator does all of it.
#[expect(unsafe_code, reason = "no crate counts allocations")]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

type MakeObject = fn(usize) -> Value;

const KINDS: [(ObjectKind, MakeObject); 3] = [
    (ObjectKind::Pod, |number| pod(number, &format!("team-{}", number / 20 % 500), 0)),
    (ObjectKind::Service, service),
    (ObjectKind::EndpointSlice, slice),
];

fn main() -> ExitCode {
    Bench { sizes: Sizes::Of(&[10_000]), ..Bench::default() }.run(|chosen| {
        for count in &chosen.sizes {
            println!("{count} objects of each kind; for one object:\n");
            println!("| kind | encoding | bytes | processor time | allocations | allocated |");
            println!("| --- | --- | --- | --- | --- | --- |");
            KINDS.iter().try_for_each(|(kind, object)| measure(*kind, *count, *object))?;
        }
        Ok(())
    })
}

fn measure(kind: ObjectKind, count: usize, object: MakeObject) -> Result<()> {
    let json: Vec<String> = (0..count).map(|number| object(number).to_string()).collect();
    let objects = json.iter().map(|json| RawObject::json(kind, json));
    decode(kind, "JSON", json.iter().map(String::len).sum(), objects)?;
    let encoded = |number| protobuf::object(&kind.to_string(), &object(number));
    let messages: Vec<Vec<u8>> = (0..count).map(encoded).collect();
    let objects = messages.iter().map(|message| RawObject::protobuf(kind, message));
    decode(kind, "protobuf", messages.iter().map(Vec::len).sum(), objects)
}

fn decode<'o>(
    kind: ObjectKind,
    encoding: &str,
    bytes: usize,
    objects: impl ExactSizeIterator<Item = RawObject<'o>>,
) -> Result<()> {
    let count = objects.len();
    let each = |total: u64| total as f64 / count as f64;
    let (mut decoder, mut warnings) = (Decoder::new("node-1".into()), Vec::new());
    // Objects stay, as they do in the model: pods share their labels.
    let mut kept = Vec::with_capacity(count);
    let counters = || [&ALLOCATIONS, &ALLOCATED].map(|counter| counter.load(Ordering::Relaxed));
    let (before, used) = (counters(), processor_time()?);
    for object in objects {
        kept.extend(object.decode(&mut decoder, &mut warnings)?);
    }
    let (after, took) = (counters(), processor_time()? - used);
    println!(
        "| {kind} | {encoding} | {:.0} | {:.2} us | {:.1} | {:.0} |",
        each(bytes as u64),
        took.as_secs_f64() * 1e6 / count as f64,
        each(after[0] - before[0]),
        each(after[1] - before[1]),
    );
    Ok(())
}
