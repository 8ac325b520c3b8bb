//! gRPC server reflection, so that tools find the services without `.proto` files.

use std::collections::HashMap;

use agent_sandbox_protocol::grpc::DESCRIPTORS;
use agent_sandbox_protocol::grpc::reflection::server_reflection_request::MessageRequest;
use agent_sandbox_protocol::grpc::reflection::server_reflection_response::MessageResponse;
use agent_sandbox_protocol::grpc::reflection::server_reflection_server::ServerReflection;
use agent_sandbox_protocol::grpc::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

const NOT_FOUND: i32 = tonic::Code::NotFound as i32;

/// The members of descriptors that reflection reads; the bytes themselves are passed on unchanged.
#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    message: Vec<Named>,
    #[prost(message, repeated, tag = "5")]
    enumeration: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    service: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    method: Vec<Named>,
}

/// Descriptor files by name and by the symbols that they define.
#[derive(Clone, Debug)]
pub(super) struct Reflection {
    by_name: HashMap<String, Bytes>,
    by_symbol: HashMap<String, Bytes>,
    services: Vec<String>,
}

impl Reflection {
    pub(super) fn new() -> Self {
        // The descriptors are compiled in and checked by a test.
        let files = Files::decode(DESCRIPTORS).unwrap_or_default();
        let mut reflection = Self { by_name: HashMap::new(), by_symbol: HashMap::new(), services: Vec::new() };
        for bytes in files.file {
            let file = File::decode(bytes.clone()).unwrap_or_default();
            let mut define = |symbol: String| reflection.by_symbol.insert(symbol, bytes.clone());
            for named in file.message.iter().chain(&file.enumeration) {
                define(format!("{}.{}", file.package, named.name));
            }
            for service in &file.service {
                let full = format!("{}.{}", file.package, service.name);
                for method in &service.method {
                    define(format!("{full}.{}", method.name));
                }
                define(full.clone());
                reflection.services.push(full);
            }
            reflection.by_name.insert(file.name, bytes);
        }
        reflection.services.sort();
        reflection
    }

    fn respond(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let message = match &request.message_request {
            Some(MessageRequest::ListServices(_)) => {
                let service = self.services.iter().map(|name| ServiceResponse { name: name.clone() }).collect();
                MessageResponse::ListServicesResponse(ListServiceResponse { service })
            }
            Some(MessageRequest::FileByFilename(name)) => file(self.by_name.get(name), name),
            Some(MessageRequest::FileContainingSymbol(symbol)) => file(self.by_symbol.get(symbol), symbol),
            Some(MessageRequest::AllExtensionNumbersOfType(name)) => {
                let base_type_name = name.clone();
                MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
                    base_type_name,
                    extension_number: Vec::new(),
                })
            }
            Some(MessageRequest::FileContainingExtension(_)) | None => file(None, "extension"),
        };
        ServerReflectionResponse {
            valid_host: request.host.clone(),
            original_request: Some(request),
            message_response: Some(message),
        }
    }
}

fn file(found: Option<&Bytes>, wanted: &str) -> MessageResponse {
    match found {
        Some(bytes) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: vec![bytes.clone()],
        }),
        None => MessageResponse::ErrorResponse(ErrorResponse {
            error_code: NOT_FOUND,
            error_message: format!("{wanted} not found"),
        }),
    }
}

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream = BoxStream<'static, Result<ServerReflectionResponse, Status>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let reflection = self.clone();
        let answers = request.into_inner().map(move |request| request.map(|request| reflection.respond(request)));
        Ok(Response::new(answers.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-103
    #[test]
    fn the_process_service_is_listed_and_described() {
        let reflection = Reflection::new();
        let ask = |request| {
            reflection.respond(ServerReflectionRequest { host: String::new(), message_request: Some(request) })
        };
        let listed = ask(MessageRequest::ListServices(String::new())).message_response;
        let Some(MessageResponse::ListServicesResponse(list)) = listed else { panic!("{listed:?}") };
        assert!(list.service.iter().any(|service| service.name == "process.v1.ProcessService"));
        for symbol in ["process.v1.ProcessService", "process.v1.StartRequest", "process.v1.ProcessService.Start"] {
            let found = ask(MessageRequest::FileContainingSymbol(symbol.into())).message_response;
            assert!(matches!(found, Some(MessageResponse::FileDescriptorResponse(_))), "{symbol}");
        }
        let found = ask(MessageRequest::FileByFilename("google/protobuf/empty.proto".into())).message_response;
        assert!(matches!(found, Some(MessageResponse::FileDescriptorResponse(_))));
    }
}
