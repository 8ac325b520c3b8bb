//! Reads users and groups from `/etc/passwd` and `/etc/group`: a static binary has no name service switch.

use std::collections::HashMap;
use std::path::Path;

use rustix::thread::CapabilitySet;

use super::launch::Identity;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Maximum number of bytes read of either file.
const MAX_FILE: u64 = 4 << 20;

/// Why a user could not be found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum UserError {
    #[error("user {0:?} is not in /etc/passwd")]
    Unknown(String),
    #[error("group {0:?} is not in /etc/group")]
    UnknownGroup(String),
}

/// Resolves `name`, `uid`, `name:group` or `uid:gid`.
pub(crate) fn find(user: &str) -> Result<Identity, UserError> {
    find_in(user, &read(PASSWD), &read(GROUP))
}

/// The home directory of a user; `None` without an entry.
pub(crate) fn home_of(uid: u32) -> Option<String> {
    let passwd = read(PASSWD);
    let entry = entries(&passwd).find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    entry.get(5).filter(|home| !home.is_empty()).map(|home| (*home).to_owned())
}

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// The account with this login name.
pub(crate) fn account(name: &str) -> Option<Account> {
    accounts(&read(PASSWD)).find(|account| account.name == name)
}

/// The account with this number.
pub(crate) fn account_of(uid: u32) -> Option<Account> {
    accounts(&read(PASSWD)).find(|account| account.uid == uid)
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account> {
    entries(passwd).filter_map(|fields| {
        let home = fields.get(5).copied().unwrap_or_default();
        Some(Account {
            name: (*fields.first()?).to_owned(),
            uid: fields.get(2)?.parse().ok()?,
            gid: fields.get(3)?.parse().ok()?,
            home: if home.is_empty() { "/".into() } else { home.into() },
        })
    })
}

/// Names of users and groups by number, read once for many look-ups.
#[derive(Debug)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn read() -> Self {
        let mut names = Self { users: HashMap::new(), groups: HashMap::new() };
        for account in accounts(&read(PASSWD)) {
            names.users.entry(account.uid).or_insert(account.name);
        }
        for fields in entries(&read(GROUP)) {
            if let Some(id) = fields.get(2).and_then(|id| id.parse().ok()) {
                names.groups.entry(id).or_insert_with(|| fields[0].to_owned());
            }
        }
        names
    }

    /// The user's name, or the number as text.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The group's name, or the number as text.
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// Whether the daemon can run commands as other users.
pub(crate) fn can_change_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

fn read(path: &str) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(Path::new(path)) {
        // An unreadable file has no entries, like a missing one.
        let _ = file.take(MAX_FILE).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(':').collect())
}

fn find_in(user: &str, passwd: &str, group: &str) -> Result<Identity, UserError> {
    let (name, group_name) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user, None),
    };
    let number: Option<u32> = name.parse().ok();
    let entry = entries(passwd).find(|fields| {
        fields.first() == Some(&name) || number.is_some() && fields.get(2).and_then(|id| id.parse().ok()) == number
    });
    let field = |index: usize| entry.as_ref().and_then(|fields| fields.get(index)).and_then(|id| id.parse().ok());
    let uid = field(2).or(number).ok_or_else(|| UserError::Unknown(name.to_owned()))?;
    let gid = match group_name {
        Some(group_name) => group_id(group_name, group)?,
        None => field(3).unwrap_or(uid),
    };
    let login = entry.as_ref().and_then(|fields| fields.first().copied()).unwrap_or_default();
    let member = |fields: &Vec<&str>| {
        !login.is_empty() && fields.get(3).is_some_and(|members| members.split(',').any(|name| name == login))
    };
    let mut groups = vec![gid];
    let joined = entries(group).filter(member).filter_map(|fields| fields.get(2)?.parse::<u32>().ok());
    groups.extend(joined.filter(|id| *id != gid));
    Ok(Identity { uid, gid, groups })
}

fn group_id(name: &str, group: &str) -> Result<u32, UserError> {
    let entry = entries(group).find(|fields| fields.first() == Some(&name));
    let known = entry.and_then(|fields| fields.get(2).and_then(|id| id.parse().ok()));
    known.or_else(|| name.parse().ok()).ok_or_else(|| UserError::UnknownGroup(name.to_owned()))
}

/// Fuzz target: the first line is a user, the rest stands in both files.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (user, file) = text.split_once('\n').unwrap_or((&text, ""));
    let _ = find_in(user, file, file);
    let _ = (accounts(file).count(), group_id(user, file));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\n# note\nagent:x:1000:1001::/home/agent:/bin/sh\nbroken\n";
    const GROUP: &str = "root:x:0:\nagent:x:1001:\nwheel:x:10:root,agent\n";

    #[test]
    fn names_and_numbers_are_found() {
        let agent = Identity { uid: 1000, gid: 1001, groups: vec![1001, 10] };
        assert_eq!(find_in("agent", PASSWD, GROUP), Ok(agent.clone()));
        assert_eq!(find_in("1000", PASSWD, GROUP), Ok(agent));
        let bare = Identity { uid: 77, gid: 77, groups: vec![77] };
        assert_eq!(find_in("77", PASSWD, GROUP), Ok(bare));
        assert_eq!(find_in("agent:wheel", PASSWD, GROUP).map(|identity| identity.gid), Ok(10));
        assert_eq!(find_in("nobody", PASSWD, GROUP), Err(UserError::Unknown("nobody".into())));
        let home = accounts(PASSWD).find(|account| account.uid == 1000).map(|account| (account.name, account.home));
        assert_eq!(home, Some(("agent".into(), "/home/agent".into())));
        assert_eq!(find_in("agent:x", PASSWD, GROUP), Err(UserError::UnknownGroup("x".into())));
    }
}
