//! The user of a request.

/// The authenticated user of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserInfo {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
}

impl UserInfo {
    /// The user of the kubeconfig that this server writes and of the in-process client; has every permission.
    pub fn administrator() -> Self {
        Self {
            username: "kubernetes-admin".into(),
            uid: String::new(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            extra: Vec::new(),
        }
    }

    /// The user of requests without a token: only health checks.
    pub(crate) fn anonymous() -> Self {
        Self { username: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..Self::default() }
    }

    /// Members of `system:masters` bypass RBAC.
    pub fn is_administrator(&self) -> bool {
        self.groups.iter().any(|g| g == "system:masters")
    }
}
