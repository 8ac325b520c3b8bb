//! The MCP request handler: determines the session, dispatches to the tools, and returns errors as text for the model.

use crate::{Sandboxes, arguments::parse, is_label_value, ports::OpenPorts, sandboxes::ToolError, tools};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ResourceContents, ResourceTemplate,
        ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use std::borrow::Cow;

const NAME: &str = "K8sAgentSandbox";
const SESSION_HEADER: &str = "mcp-session-id";
const SCHEME: &str = "sandboxes://";
const INSTRUCTIONS: &str = "Isolated computers. Every tool works without naming one: the first call creates a sandbox, and later calls use it. \
    create_sandbox makes further ones; pass the claim name that it returns to the other tools. Files and installed packages stay until the \
    sandbox is deleted or has not been used for its idle time. Delete sandboxes that are not needed any more.";
/// Newest supported protocol version. Later ones have no sessions, which sandboxes belong to.
const NEWEST_PROTOCOL: ProtocolVersion = ProtocolVersion::V_2025_11_25;

/// Handles one MCP session, or with HTTP all sessions.
#[derive(Clone)]
pub(crate) struct Server {
    sandboxes: Sandboxes,
    /// The session id; `None` takes it from the header of each request.
    session: Option<String>,
    /// Ports of this machine that lead into sandboxes. With HTTP the client may be on another machine, and other
    /// clients are served too: `None`.
    ports: Option<OpenPorts>,
}

impl Server {
    pub(crate) fn of_one_session(sandboxes: Sandboxes, session: String) -> Self {
        Self { sandboxes, session: Some(session), ports: Some(OpenPorts::default()) }
    }

    pub(crate) fn of_http(sandboxes: Sandboxes) -> Self {
        Self { sandboxes, session: None, ports: None }
    }

    fn tools(&self) -> Vec<Tool> {
        tools::all(&self.sandboxes.defaults, self.ports.is_some())
    }

    fn session(&self, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let parts = context.extensions.get::<http::request::Parts>();
        let named = parts.and_then(|parts| parts.headers.get(SESSION_HEADER)?.to_str().ok());
        match named {
            Some(session) if is_label_value(session) => Ok(session.to_owned()),
            _ => Err(ErrorData::invalid_request(
                "a session is needed: initialize first and send its Mcp-Session-Id",
                None,
            )),
        }
    }

    async fn call(&self, session: &str, request: CallToolRequestParams) -> Result<CallToolResult, ErrorData> {
        let CallToolRequestParams { name, arguments, .. } = request;
        let sandboxes = &self.sandboxes;
        macro_rules! run {
            ($method:ident) => {
                match parse(arguments) {
                    Ok(arguments) => sandboxes.$method(session, arguments).await.map_err(|error| error.to_string()),
                    Err(wrong) => Err(wrong),
                }
            };
        }
        let outcome = match name.as_ref() {
            "create_sandbox" => run!(create),
            "execute_command" => run!(execute),
            "upload_file" => run!(upload),
            "download_file" => run!(download),
            "list_files" => run!(list),
            "file_exists" => run!(exists),
            "run_code" => run!(run_code),
            "run_python" => run!(run_python),
            "start_command" => run!(start_command),
            "command_output" => run!(command_output),
            "stop_command" => run!(stop_command),
            "list_ports" => run!(list_ports),
            "snapshot_sandbox" => run!(snapshot),
            "fork_sandbox" => run!(fork),
            "rollback_sandbox" => run!(rollback),
            "delete_sandbox" => run!(delete),
            "open_port" if self.ports.is_some() => match (&self.ports, parse(arguments)) {
                (Some(ports), Ok(wanted)) => {
                    ports.open(sandboxes, session, wanted).await.map_err(|error| error.to_string())
                }
                (_, Err(wrong)) => Err(wrong),
                (None, Ok(_)) => unreachable!("checked by the guard"),
            },
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other:?}"), None)),
        };
        Ok(match outcome {
            Ok(Value::Null) => CallToolResult::success(Vec::new()),
            Ok(value) => CallToolResult::structured(value),
            Err(message) => CallToolResult::error(vec![ContentBlock::text(message)]),
        })
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let implementation = Implementation::new(NAME, env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_protocol_version(NEWEST_PROTOCOL)
            .with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&NEWEST_PROTOCOL))
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let session = self.session(&context)?;
        // Cancelling drops the call and its connection: the sandbox then kills the command, and a claim that is being
        // created is deleted again.
        tokio::select! {
            done = self.call(&session, request) => done.map(Into::into),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
        }
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new(format!("{SCHEME}{{namespace}}"), "sandboxes")
            .with_description(
                "Names of this session's sandboxes in a namespace: claims, and sandboxes made by fork_sandbox",
            )
            .with_mime_type("application/json");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let session = self.session(&context)?;
        let namespace = request.uri.strip_prefix(SCHEME).filter(|name| !name.is_empty() && !name.contains('/'));
        let Some(namespace) = namespace else {
            return Err(ErrorData::resource_not_found(format!("{} is not {SCHEME}NAMESPACE", request.uri), None));
        };
        let names = self.sandboxes.names(&session, namespace).await;
        let names = names.map_err(|error: ToolError| ErrorData::internal_error(error.to_string(), None))?;
        let text =
            ResourceContents::text(json!(names).to_string(), request.uri.clone()).with_mime_type("application/json");
        Ok(ReadResourceResult::new(vec![text]).into())
    }
}
