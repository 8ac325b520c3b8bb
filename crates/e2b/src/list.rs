//! Lists sandboxes: filters, order, pages.

use std::collections::HashMap;

use agent_sandbox_api::v1beta1::SandboxClaim;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use kube::api::ListParams;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::metadata::{self, Metadata};
use crate::record::{Record, State, owns};
use crate::routes::Generation;
use crate::server::Call;

/// Size of a page, and the largest one.
const PAGE: usize = 100;

/// A page of a list.
pub(crate) struct Page<T = Map<String, Value>> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}

impl<T> Page<T> {
    /// The first `limit` of what is sorted and begins after the last page.
    pub(crate) fn of(
        found: Vec<T>,
        key: impl Fn(&T) -> Position,
        begins: impl Fn(&Position) -> bool,
        limit: Option<usize>,
    ) -> Self {
        let mut rest = found.into_iter().filter(|item| begins(&key(item))).peekable();
        let items: Vec<T> = rest.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
        let next = rest.peek().and(items.last()).map(|last| token(&key(last)));
        Self { items, next }
    }

    pub(crate) fn map<U>(self, show: impl Fn(&T) -> U) -> Page<U> {
        Page { items: self.items.iter().map(show).collect(), next: self.next }
    }
}

/// What a list is reduced to.
#[derive(Debug, Default)]
struct Filter {
    metadata: Metadata,
    states: Option<Vec<State>>,
    started_after: Option<Timestamp>,
    template: Option<String>,
}

impl Filter {
    fn accepts(&self, record: &Record, now: Timestamp) -> bool {
        let own = record.metadata();
        self.metadata.iter().all(|(key, value)| own.get(key) == Some(value))
            && self.states.as_ref().is_none_or(|states| states.contains(&record.state(now)))
            && self.started_after.is_none_or(|after| record.started() > after)
            && self.template.as_ref().is_none_or(|template| record.template() == template)
    }
}

/// Where a page begins: after the object that began at this time and has this name.
pub(crate) type Position = (Timestamp, String);

impl Call<'_> {
    pub(crate) async fn list(&self, generation: Generation) -> Result<Page, Error> {
        let now = Timestamp::now();
        let filter = self.filter(generation)?;
        let ascending = match self.parameter("order").as_deref() {
            None | Some("desc" | "") => false,
            Some("asc") => true,
            Some(other) => return Err(Error::Invalid(format!("order {other:?} is neither asc nor desc"))),
        };
        let (limit, after) = self.paging()?;
        let mut found = self.records().await?;
        found.retain(|record| record.is_listed(now) && filter.accepts(record, now));
        found.sort_by_cached_key(key);
        if !ascending {
            found.reverse();
        }
        let begins = |key: &Position| match &after {
            Some(after) if ascending => key > after,
            Some(after) => key < after,
            None => true,
        };
        let page = Page::of(found, key, begins, (generation == Generation::V2).then_some(limit));
        Ok(page.map(|record| record.item(self.settings, now)))
    }

    /// Size of a page, and where it begins.
    pub(crate) fn paging(&self) -> Result<(usize, Option<Position>), Error> {
        let limit = match self.parameter("limit").filter(|text| !text.is_empty()) {
            None => PAGE,
            Some(text) => match text.parse() {
                Ok(limit @ 1..=PAGE) => limit,
                _ => return Err(Error::Invalid(format!("limit {text:?} is not a number from 1 to {PAGE}"))),
            },
        };
        let after = self.parameter("nextToken").filter(|text| !text.is_empty());
        Ok((limit, after.map(|text| position(&text)).transpose()?))
    }

    fn filter(&self, generation: Generation) -> Result<Filter, Error> {
        let states = self.parameter("state").filter(|text| !text.is_empty()).map(|text| {
            let state = |word: &str| match word {
                "running" => Ok(State::Running),
                "paused" => Ok(State::Paused),
                other => Err(Error::Invalid(format!("state {other:?} is neither running nor paused"))),
            };
            text.split(',').map(|word| state(word.trim())).collect::<Result<Vec<_>, _>>()
        });
        let started = self.parameter("startedAfter").filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|error| Error::Invalid(format!("startedAfter {text:?} is not a time: {error}")))
        });
        let states = match (states.transpose()?, generation) {
            // The first generation lists what runs.
            (None, Generation::V1) => Some(vec![State::Running]),
            (states, _) => states,
        };
        Ok(Filter {
            metadata: self.parameter("metadata").map(|text| metadata::filter(&text)).unwrap_or_default(),
            states,
            started_after: started.transpose()?,
            template: self.parameter("template").filter(|text| !text.is_empty()),
        })
    }

    /// All Sandboxes of the namespace with their claims.
    async fn records(&self) -> Result<Vec<Record>, Error> {
        let everything = ListParams::default();
        let (sandboxes, claims) = (self.sandboxes(), self.claims());
        let (sandboxes, claims) = tokio::try_join!(sandboxes.list(&everything), claims.list(&everything))?;
        let mut by_name: HashMap<String, SandboxClaim> =
            claims.items.into_iter().filter_map(|claim| Some((claim.metadata.name.clone()?, claim))).collect();
        let record = |sandbox: agent_sandbox_api::v1beta1::Sandbox| {
            let name = sandbox.metadata.name.as_deref().unwrap_or_default();
            Record { claim: by_name.remove(name).filter(|claim| owns(claim, &sandbox)), sandbox }
        };
        Ok(sandboxes.items.into_iter().map(record).collect())
    }
}

fn key(record: &Record) -> Position {
    (record.started(), record.name().to_owned())
}

fn token((time, name): &Position) -> String {
    URL_SAFE_NO_PAD.encode(format!("{time} {name}"))
}

fn position(token: &str) -> Result<Position, Error> {
    let decoded = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let found = decoded.as_deref().and_then(|text| {
        let (time, name) = text.split_once(' ')?;
        Some((time.parse().ok()?, name.to_owned()))
    });
    found.ok_or_else(|| Error::Invalid("nextToken is not one of this API".to_owned()))
}
