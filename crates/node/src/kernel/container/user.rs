//! Resolves a container's user: the Pod or the image gives a number or a name, which the image's `/etc/passwd` and
//! `/etc/group` translate.

use crate::runtime::User;

/// A user as found in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("user {0:?} is not in the image's /etc/passwd")]
    UnknownUser(String),
    #[error("group {0:?} is not in the image's /etc/group")]
    UnknownGroup(String),
}

/// Resolves `user`, `uid`, `user:group` and the like. An id needs no entry; a name does.
pub(crate) fn find_user(wanted: &User, passwd: &str, group: &str) -> Result<FoundUser, UserError> {
    let (user, group_part) = match wanted.user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (wanted.user.as_str(), None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number = user.parse::<u32>().ok();
    let entry = passwd.lines().filter_map(parse_passwd).find(|entry| match number {
        Some(uid) => entry.uid == uid,
        None => entry.name == user,
    });
    let uid = match (number, &entry) {
        (Some(uid), _) => uid,
        (None, Some(entry)) => entry.uid,
        (None, None) => return Err(UserError::UnknownUser(user.to_owned())),
    };
    let from_image = match group_part {
        Some(text) => match text.parse::<u32>() {
            Ok(gid) => Some(gid),
            Err(_) => Some(find_group(text, group).ok_or_else(|| UserError::UnknownGroup(text.to_owned()))?),
        },
        None => None,
    };
    let gid = wanted.gid.or(from_image).or(entry.as_ref().map(|entry| entry.gid)).unwrap_or(0);
    let mut groups = wanted.supplementary_groups.clone();
    if let Some(entry) = &entry {
        groups.extend(groups_of(entry.name, group));
    }
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    let home = entry.map_or("/", |entry| entry.home).to_owned();
    Ok(FoundUser { uid, gid, groups, home })
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn parse_passwd(line: &str) -> Option<PasswdEntry<'_>> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/");
    Some(PasswdEntry { name, uid, gid, home })
}

fn find_group(name: &str, group: &str) -> Option<u32> {
    group.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn groups_of<'a>(user: &'a str, group: &'a str) -> impl Iterator<Item = u32> + 'a {
    group.lines().filter_map(move |line| {
        let mut fields = line.split(':');
        let gid = fields.nth(2)?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == user).then_some(gid)
    })
}

/// Fuzz target: the first line is a user, the rest stands in both files.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (user, file) = text.split_once('\n').unwrap_or((&text, ""));
    let wanted = User { user: user.to_owned(), gid: None, supplementary_groups: vec![7] };
    let _ = find_user(&wanted, file, file);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\nbroken line\n";
    const GROUP: &str = "root:x:0:\nuser:x:1000:\nvideo:x:44:user,other\n";

    fn find(user: &str) -> Result<FoundUser, UserError> {
        find_user(&User { user: user.to_owned(), ..User::default() }, PASSWD, GROUP)
    }

    #[test]
    fn empty_means_root() {
        assert_eq!(find(""), Ok(FoundUser { uid: 0, gid: 0, groups: vec![0], home: "/root".into() }));
    }

    #[test]
    fn a_name_resolves_to_its_groups_and_home() {
        assert_eq!(
            find("user"),
            Ok(FoundUser { uid: 1000, gid: 1000, groups: vec![44, 1000], home: "/home/user".into() })
        );
        assert_eq!(find("1000"), find("user"));
    }

    #[test]
    fn a_number_without_entry_is_fine_and_has_group_root() {
        assert_eq!(find("4242"), Ok(FoundUser { uid: 4242, gid: 0, groups: vec![0], home: "/".into() }));
    }

    #[test]
    fn groups_are_found_by_name_and_number() {
        assert_eq!(find("user:video").map(|found| found.gid), Ok(44));
        assert_eq!(find("user:7").map(|found| found.gid), Ok(7));
        assert_eq!(find("user:nogroup"), Err(UserError::UnknownGroup("nogroup".into())));
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(find("nobody"), Err(UserError::UnknownUser("nobody".into())));
    }

    #[test]
    fn the_pods_group_wins_over_the_images() {
        let user = User { user: "user:video".into(), gid: Some(9), supplementary_groups: vec![3] };
        let found = find_user(&user, PASSWD, GROUP).unwrap();
        assert_eq!((found.gid, found.groups), (9, vec![3, 9, 44]));
    }
}
