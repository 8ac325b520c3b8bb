//! The gRPC services, on the same ports as REST.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_sandbox_protocol::grpc::attach::attach_service_server::AttachServiceServer;
use agent_sandbox_protocol::grpc::health::health_check_response::ServingStatus;
use agent_sandbox_protocol::grpc::health::health_server::{Health, HealthServer};
use agent_sandbox_protocol::grpc::health::{HealthCheckRequest, HealthCheckResponse};
use agent_sandbox_protocol::grpc::process::process_service_server::ProcessServiceServer;
use agent_sandbox_protocol::grpc::reflection::server_reflection_server::ServerReflectionServer;
use futures::stream::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::Workspace;
use super::reflection::Reflection;

/// Every service, as one router.
pub fn routes(workspace: &Arc<Workspace>) -> axum::Router {
    Routes::new(ProcessServiceServer::from_arc(Arc::clone(workspace)))
        .add_service(AttachServiceServer::from_arc(Arc::clone(workspace)))
        .add_service(HealthServer::from_arc(Arc::clone(workspace)))
        .add_service(ServerReflectionServer::new(Reflection::new()))
        .prepare()
        .into_axum_router()
}

#[tonic::async_trait]
impl Health for Workspace {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(self.serving()))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        // The status changes once, at shutdown, which closes the stream.
        let now = futures::stream::iter([Ok(self.serving())]);
        Ok(Response::new(Box::pin(futures::StreamExt::chain(now, futures::stream::pending()))))
    }
}

impl Workspace {
    fn serving(&self) -> HealthCheckResponse {
        let stopping = self.stopping.load(Ordering::Relaxed);
        let status = if stopping { ServingStatus::NotServing } else { ServingStatus::Serving };
        HealthCheckResponse { status: status.into() }
    }
}
