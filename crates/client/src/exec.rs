//! Running a command through the Kubernetes API's exec, with its streams and exit code.

use crate::ClientError;
use agent_sandbox_protocol::exec::EXEC_USER;
use http::{Request, Uri};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api, Client, ResourceExt,
    api::{AttachParams, AttachedProcess},
    client::Body,
};

/// Bytes of a stream that may wait for its reader. The library's own 1 KiB costs a switch of tasks for every kilobyte.
const STREAM_BUFFER: usize = 256 * 1024;

/// Options of an exec.
#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    pub container: Option<String>,
    /// User to run as, by name or id. Only the API of a local engine knows that: others run the command as the
    /// container's user.
    pub user: Option<String>,
    pub stdin: bool,
    pub tty: bool,
}

/// A started command.
pub struct ExecStreams {
    process: AttachedProcess,
}

/// Starts a command in a Pod.
pub async fn exec(
    client: &Client,
    pod: &Pod,
    command: &[String],
    options: &ExecOptions,
) -> Result<ExecStreams, ClientError> {
    let name = pod.name_any();
    let container = choose_container(pod, options.container.as_deref())?;
    let client = match &options.user {
        Some(user) => as_user(client, user)?,
        None => client.clone(),
    };
    let pods: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
    let params = AttachParams::default()
        .container(container)
        .stdin(options.stdin)
        .stdout(true)
        .stderr(!options.tty)
        .tty(options.tty)
        .max_stdin_buf_size(STREAM_BUFFER)
        .max_stdout_buf_size(STREAM_BUFFER)
        .max_stderr_buf_size(STREAM_BUFFER);
    let process = pods.exec(&name, command.iter().map(String::as_str), &params).await;
    Ok(ExecStreams { process: process.map_err(ClientError::api(format!("run a command in `{name}`")))? })
}

/// The same client, with a parameter in each request that says whom the command runs as.
fn as_user(client: &Client, user: &str) -> Result<Client, ClientError> {
    if user.is_empty() || !user.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.:".contains(letter)) {
        return Err(ClientError::Invalid(format!("`{user}` is not the name or id of a user")));
    }
    let (inner, parameter) = (client.clone(), format!("{EXEC_USER}={user}"));
    let send = tower::service_fn(move |mut request: Request<Body>| {
        let client = inner.clone();
        let separator = if request.uri().query().is_some() { '&' } else { '?' };
        let uri = format!("{}{separator}{parameter}", request.uri()).parse::<Uri>();
        async move {
            *request.uri_mut() = uri.map_err(|error| kube::Error::HttpError(error.into()))?;
            client.send(request).await
        }
    });
    Ok(Client::new(send, client.default_namespace()))
}

impl ExecStreams {
    /// The streams and the final status. Each stream can be taken once.
    pub fn process(&mut self) -> &mut AttachedProcess {
        &mut self.process
    }
}

/// The exit code in the final status of an exec; `None` if the command could not be run.
pub(crate) fn exit_code(status: &Status) -> Option<i32> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.as_ref()?.causes.as_ref()?;
    causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"))?.message.as_ref()?.parse().ok()
}

impl ExecStreams {
    /// Waits until the command ends. Returns its exit code, or the API's message as error if there is none.
    pub async fn exit(&mut self) -> Result<i32, ClientError> {
        let broken = |message: &str| ClientError::Stream {
            operation: "wait for the command".to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::UnexpectedEof, message.to_owned()),
        };
        let Some(ending) = self.process.take_status() else { return Err(broken("its end was already taken")) };
        let status = ending.await.ok_or_else(|| broken("the connection ended before the command did"))?;
        exit_code(&status).ok_or_else(|| broken(status.message.as_deref().unwrap_or("the command was not run")))
    }
}

/// The requested container, otherwise the annotated default, otherwise the first one.
fn choose_container(pod: &Pod, wanted: Option<&str>) -> Result<String, ClientError> {
    let names: Vec<String> =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone()).collect();
    let default = pod.annotations().get("kubectl.kubernetes.io/default-container");
    let chosen = wanted.map(str::to_owned).or_else(|| default.cloned()).or_else(|| names.first().cloned());
    match chosen {
        Some(chosen) if names.contains(&chosen) => Ok(chosen),
        other => Err(ClientError::NoContainer {
            name: pod.name_any(),
            container: other.unwrap_or_default(),
            present: names.join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(value: serde_json::Value) -> Status {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_exit_code_is_read_from_the_causes() {
        assert_eq!(exit_code(&status(json!({"status": "Success"}))), Some(0));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        assert_eq!(exit_code(&status(failed)), Some(3));
        assert_eq!(exit_code(&status(json!({"status": "Failure", "message": "no such file"}))), None);
    }

    #[test]
    fn a_container_must_exist() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"kubectl.kubernetes.io/default-container": "b"}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}
        }))
        .unwrap();
        assert_eq!(choose_container(&pod, None).unwrap(), "b");
        assert_eq!(choose_container(&pod, Some("a")).unwrap(), "a");
        assert!(choose_container(&pod, Some("c")).unwrap_err().to_string().contains("it has: a, b"));
    }
}
