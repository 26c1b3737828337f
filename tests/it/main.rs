//! The one integration binary: every test drives the real program in a folder of its own.

mod cli;
mod crash;
mod harness;
mod ingest;
mod search;
mod wire;
