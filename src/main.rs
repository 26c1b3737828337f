//! The program: everything it does for a command line is in `cli`.

mod cli;

fn main() {
    #[cfg(feature = "onnx")]
    {
        let (name, value) = kebab_lite::index::embed::NO_REPORTS;
        // SAFETY: no other thread runs yet that could read the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    kebab_lite::exit::end(cli::run(std::env::args_os().skip(1).collect()).code())
}
