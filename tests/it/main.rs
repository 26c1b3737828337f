//! The one integration binary: every test drives the real program in a folder of its own.

mod answers;
mod architecture;
mod ask;
mod ask_server;
mod ask_trouble;
mod cli;
mod clients;
mod connect;
mod crash;
mod edges;
mod embedding;
#[cfg(feature = "onnx")]
mod engines;
mod fetch;
#[cfg(target_os = "linux")]
mod full_disk;
mod harness;
mod http;
mod http_gate;
mod http_life;
mod http_stream;
mod hybrid;
mod ingest;
mod ingest_config;
mod ingest_one;
mod mcp;
mod mcp_life;
mod model_server;
#[cfg(feature = "onnx")]
mod onnx;
mod parity;
#[cfg(feature = "onnx")]
mod rerank;
mod search;
mod stub;
mod wire;
