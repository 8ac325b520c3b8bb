//! HTTP requests and responses, for every dialect: bodies, file downloads, multipart forms.

pub mod body;
pub mod download;
mod file_body;
pub mod form;
