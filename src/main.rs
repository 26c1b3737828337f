//! The program: everything it does for a command line is in `cli`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "onnx")]
    {
        let (name, value) = kebab_lite::index::embed::NO_REPORTS;
        // SAFETY: no other thread runs yet that could read the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    cli::run(std::env::args_os().skip(1).collect()).into()
}
