//! Who is asking.

/// The authenticated caller of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserInfo {
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
}

impl UserInfo {
    /// The identity of the kubeconfig this server writes and of the in-process client: may do everything.
    pub fn administrator() -> Self {
        Self {
            username: "kubernetes-admin".into(),
            uid: String::new(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            extra: Vec::new(),
        }
    }

    /// Whoever asks whether the server lives, and may ask nothing else.
    pub(crate) fn prober() -> Self {
        Self { username: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..Self::default() }
    }

    /// Members of `system:masters` are never asked by RBAC.
    pub fn is_administrator(&self) -> bool {
        self.groups.iter().any(|g| g == "system:masters")
    }
}
