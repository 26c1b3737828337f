//! The program: everything it does for a command line is in `cli`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().skip(1).collect()).into()
}
