//! The dimensions of what is drawn.

/// The size of a box.
pub const WIDTH: i64 = 164;
pub const HEIGHT: i64 = 48;

/// The space around the picture.
pub const MARGIN: i64 = 24;

/// The space between boxes of one column.
pub const GAP: i64 = 18;
