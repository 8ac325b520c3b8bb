//! Commands that nobody has, with the one that was meant. The parser suggests by common letters in order, which finds nothing for
//! two letters that changed places in a short word.

use super::Cli;
use clap::{
    CommandFactory as _, Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::ffi::OsString;

/// One typo is always forgiven, and one more for so many letters.
const LETTERS_PER_TYPO: usize = 5;

/// Parses, or ends the program with what is wrong.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Cli {
    Cli::try_parse_from(words).unwrap_or_else(|error| with_suggestion(error).exit())
}

/// Of what is known, what is nearest, if it is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let measured = known.into_iter().map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate));
    let (distance, best) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.chars().count() / LETTERS_PER_TYPO).then_some(best)
}

fn with_suggestion(mut error: clap::Error) -> clap::Error {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand => word.clone(),
        _ => return error,
    };
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return error;
    }
    let whole = Cli::command();
    let known: Vec<&str> =
        whole.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
    if let Some(near) = nearest(&word, known) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["my-sandbox", "database"];
        assert_eq!(nearest("my-sanbox", known), Some("my-sandbox"));
        assert_eq!(nearest("datbaes", known), Some("database"));
        assert_eq!(nearest("zzz", known), None);
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
