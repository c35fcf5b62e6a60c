//! The allocator, and how unused memory returns to the kernel. It does not know what is allocated.

use nix::sys::prctl;

/// musl's own takes a tenth more processor time for a cold start, and a third more for a change.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's option `purge_delay`, for which its bindings have no name: how long pages are free
/// before they return to the kernel, in milliseconds.
#[cfg(target_env = "musl")]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Prepares a process that runs for long and should stay small.
pub fn set_up() {
    // Free memory within a huge page stays. Many distributions use huge pages for every program.
    // If the kernel refuses, the agent only needs more memory.
    let _ = prctl::set_thp_disable(true);
    #[cfg(target_env = "musl")]
    {
        // At once: the default, a second, outlasts the first load.
        // SAFETY: it takes no pointer, and no other thread runs that could change the option.
        #[expect(unsafe_code, reason = "mimalloc has no safe wrapper for it")]
        unsafe {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
        }
    }
}

/// Returns free memory to the kernel.
///
/// The first list and the first load need, for a moment, a third of the agent's peak memory. Memory
/// that stays is allocated in between. glibc's allocator only shrinks from its end, so it would
/// keep all of it for good; mimalloc keeps pages for the next allocation.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and takes the allocator's locks.
        #[expect(unsafe_code, reason = "nix has no malloc_trim")]
        unsafe {
            nix::libc::malloc_trim(0);
        }
    }
    #[cfg(target_env = "musl")]
    {
        // SAFETY: it takes no pointer, and may be called from any thread.
        #[expect(unsafe_code, reason = "mimalloc has no safe wrapper for it")]
        unsafe {
            libmimalloc_sys::mi_collect(true);
        }
    }
}
