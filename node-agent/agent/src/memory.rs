//! The allocator, and how unused memory returns to the kernel. It does not know what is allocated.

use nix::sys::prctl;

/// musl's own allocator takes a tenth more processor time for a cold start, and a third more for a
/// change.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's option `purge_delay`, for which its bindings have no name: how long pages are free
/// before they return to the kernel, in milliseconds.
#[cfg(target_env = "musl")]
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Prepares a process that runs for long and should stay small.
pub fn set_up() {
    // Free memory inside a huge page does not return to the kernel, and many distributions use huge
    // pages for every program. If the kernel refuses to turn them off, the agent only needs more
    // memory.
    let _ = prctl::set_thp_disable(true);
    #[cfg(target_env = "musl")]
    {
        // Free pages return at once: the default delay, a second, is longer than the first load.
        // SAFETY: the call takes no pointer, and no other thread runs that could change the option.
        #[expect(unsafe_code, reason = "mimalloc has no safe wrapper for it")]
        unsafe {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
        }
    }
}

/// Returns free memory to the kernel.
///
/// The first list and the first load need, for a moment, a third of the agent's peak memory. Memory
/// that stays in use is allocated in between. glibc's heap only shrinks from its end, so without
/// this call it would keep the free memory for good; mimalloc keeps free pages for the next
/// allocation.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes no pointer, and takes the allocator's locks.
        #[expect(unsafe_code, reason = "nix has no malloc_trim")]
        unsafe {
            nix::libc::malloc_trim(0);
        }
    }
    #[cfg(target_env = "musl")]
    {
        // SAFETY: the call takes no pointer, and is allowed from any thread.
        #[expect(unsafe_code, reason = "mimalloc has no safe wrapper for it")]
        unsafe {
            libmimalloc_sys::mi_collect(true);
        }
    }
}
