//! Returns unused memory to the kernel. It knows the C library's allocator, not what is allocated.

/// Returns free memory to the kernel.
///
/// The first list and the first load need, for a moment, a third of the agent's peak memory. Memory
/// that stays is allocated in between, and the allocator only shrinks from its end, so it would
/// keep all of it for good. (musl's returns memory by itself.)
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and takes the allocator's locks.
        #[expect(unsafe_code, reason = "nix has no malloc_trim")]
        unsafe {
            nix::libc::malloc_trim(0);
        }
    }
}
