//! Memory that was needed for a moment. It knows the C library's allocator and nothing of what is
//! kept in it.

/// Gives back to the kernel what is free.
///
/// A first list and the first load take a third of what the agent ever takes, for a moment. What is
/// kept was allocated in between, so that the allocator, which gives back only from its end, would
/// hold all of it for good. (musl's gives back by itself.)
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no pointer, and locks what it looks at.
        #[expect(unsafe_code, reason = "nix has no malloc_trim")]
        unsafe {
            nix::libc::malloc_trim(0);
        }
    }
}
