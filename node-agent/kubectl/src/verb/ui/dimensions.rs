//! The dimensions of what is drawn.

/// Of a box.
pub const WIDTH: i64 = 164;
pub const HEIGHT: i64 = 48;

/// Around the picture.
pub const MARGIN: i64 = 24;

/// Between boxes of one column.
pub const GAP: i64 = 18;
