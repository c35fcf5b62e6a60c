//! The lock of the folder of CNI configurations: either programs add denizen to it, or one removes
//! denizen from it. Without the lock, a program that keeps denizen there puts it back after its
//! removal. The lock ends with its process. It leaves no file in the folder.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::folder::FolderError;

/// A held lock.
#[derive(Debug)]
pub struct FolderLock {
    _folder: File,
}

impl FolderLock {
    /// For a program that adds denizen; there may be several. `None` if the folder cannot be
    /// locked: it does not exist, or its file system has no locks.
    ///
    /// # Errors
    /// [`FolderError::Removing`].
    pub fn to_insert(folder: &Path) -> Result<Option<Self>, FolderError> {
        let held = || FolderError::Removing(folder.to_owned());
        Self::taken(folder, File::try_lock_shared).ok_or_else(held)
    }

    /// For the program that removes denizen.
    ///
    /// # Errors
    /// [`FolderError::Kept`].
    pub fn to_remove(folder: &Path) -> Result<Option<Self>, FolderError> {
        let held = || FolderError::Kept(folder.to_owned());
        Self::taken(folder, File::try_lock).ok_or_else(held)
    }

    /// `None` if another program holds the lock.
    fn taken(
        folder: &Path,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Option<Option<Self>> {
        let Ok(folder) = File::open(folder) else { return Some(None) };
        match lock(&folder) {
            Ok(()) => Some(Some(Self { _folder: folder })),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(_)) => Some(None),
        }
    }
}
