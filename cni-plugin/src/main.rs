//! The chained CNI plugin `denizen`.
fn main() {}
