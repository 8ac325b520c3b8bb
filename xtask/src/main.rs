//! `cargo xtask <chore>`: chores that the Makefile and CI call.

mod conformance;
mod upstream;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask conformance [--write] | upstream";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["conformance"] => conformance::check(),
        ["conformance", "--write"] => conformance::write(),
        ["upstream"] => upstream::check(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
