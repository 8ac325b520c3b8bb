//! Suggestions for mistyped commands and names. Clap suggests by common letters in order, which finds nothing for two
//! swapped letters in a short word; the edit distance here does.

use super::Cli;
use clap::{
    CommandFactory as _, Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::ffi::OsString;

/// A name may differ in one letter, and in one more for each of this many letters.
const LETTERS_PER_TYPO: usize = 5;

/// Parses the command line. Ends the process with a message when it is wrong.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Cli {
    let mut cli = Cli::try_parse_from(words).unwrap_or_else(|error| with_suggestion(error).exit());
    let variable = || std::env::var_os("AGENT_SANDBOX_DATA_DIR").filter(|value| !value.is_empty());
    cli.global.data_dir = cli.global.data_dir.or_else(|| variable().map(Into::into));
    cli
}

/// The known names that are nearest to `name`, within the tolerance; several when they are equally near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let tolerance = 1 + name.chars().count() / LETTERS_PER_TYPO;
    let measured = known.into_iter().map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate));
    let near: Vec<_> = measured.filter(|(distance, _)| *distance <= tolerance).collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.into_iter().filter(|(distance, _)| Some(*distance) == least).map(|(_, candidate)| candidate).collect()
}

fn with_suggestion(mut error: clap::Error) -> clap::Error {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand => word.clone(),
        _ => return error,
    };
    let whole = Cli::command();
    let known = whole.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let near: Vec<String> = nearest(&word, known).into_iter().map(str::to_owned).collect();
    // Without a near name, clap's own suggestion stays.
    if !near.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["my-sandbox", "database"];
        assert_eq!(nearest("my-sanbox", known), ["my-sandbox"]);
        assert_eq!(nearest("datbaes", known), ["database"]);
        assert_eq!(nearest("zzz", known), [""; 0]);
        assert_eq!(nearest("cmp", ["cp", "mcp", "completion"]), ["cp", "mcp"]);
    }

    #[test]
    fn every_command_is_found_with_two_letters_swapped() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let mut letters: Vec<char> = name.chars().collect();
            letters.swap(0, 1);
            let typo: String = letters.into_iter().collect();
            let error = Cli::try_parse_from(["agent-sandbox", &typo]).map(drop).unwrap_err();
            let said = with_suggestion(error).to_string();
            assert!(said.contains(name), "{typo}: {said}");
        }
    }
}
