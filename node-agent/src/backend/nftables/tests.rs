//! Where endpoints sit, how one is chosen, what a change changes, and what the kernel makes of it.

mod carried;
mod choice;
mod kernel;
mod leaving;
mod rejected;
mod slots;
mod tables;
