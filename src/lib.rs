//! kebab-lite: a local knowledge base as a library. The program is a thin layer over it.
pub mod catch_up;
pub mod config;
pub mod error;
pub mod index;
pub mod ingest;
pub mod kb;
pub mod log;
pub mod model;
pub mod pool;
pub mod rpc;
pub mod stdio;
pub mod store;
pub mod tools;
pub mod wire;
