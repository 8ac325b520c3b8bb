//! The embedded Kubernetes API: objects, watches, patches, schemas, discovery, streams. It knows no kind of ours.
