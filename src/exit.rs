//! The end of the process while a model may be loading or running in some thread.
//!
//! Leaving as usual runs the destructors of the library of ONNX Runtime under such a thread, which crashes. Refuses:
//! writing out anything; whoever ends the process has done that.

use crate::index::embed;

/// Ends the process at once, all threads with it.
pub fn end(code: u8) -> ! {
    #[cfg(unix)]
    if embed::library_is_loaded() {
        unsafe extern "C" {
            fn _exit(code: std::ffi::c_int) -> !;
        }
        // SAFETY: it may be called at any time, from any thread.
        unsafe { _exit(code.into()) }
    }
    #[cfg(not(unix))]
    let _ = embed::library_is_loaded;
    std::process::exit(code.into())
}
