//! The user of a request.

const ANONYMOUS: &str = "system:anonymous";

/// The authenticated user of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserInfo {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
    /// The token that the user showed; empty for users of this process.
    pub credential: Credential,
}

/// Identifies the token of a user, so that it can be checked again while a connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credential {
    /// The id of a ServiceAccount token, or a digest of the administrator's.
    pub id: String,
    /// When the token expires, in seconds since 1970.
    pub expires: Option<i64>,
}

impl UserInfo {
    /// The user of the kubeconfig that this server writes and of the in-process client; has every permission.
    pub fn administrator() -> Self {
        Self {
            username: "kubernetes-admin".into(),
            uid: String::new(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..Self::default()
        }
    }

    /// The user of requests without a token.
    pub(crate) fn anonymous() -> Self {
        Self { username: ANONYMOUS.into(), groups: vec!["system:unauthenticated".into()], ..Self::default() }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.username == ANONYMOUS
    }

    /// Members of `system:masters` bypass RBAC.
    pub fn is_administrator(&self) -> bool {
        self.groups.iter().any(|g| g == "system:masters")
    }
}
