//! What the kernel under the other tests cannot do, on Debian's stock kernel in a guest of its own: see
//! `tests/src/bin/guest`.

#[test]
fn everything_in_one_guest() -> anyhow::Result<()> {
    denizen_tests::vm::run()
}
