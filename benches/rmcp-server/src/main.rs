//! One tool over stdio, as the SDK's own documentation writes it. `rmcp-server pipes` takes the SDK's faster transport
//! for pipes on Linux instead of the usual one.

use rmcp::handler::server::wrapper::Parameters;
use rmcp::transport::{stdio, stdio_pipes};
use rmcp::{ServiceExt, schemars, tool, tool_router};

struct Echo;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Message {
    message: String,
}

#[tool_router(server_handler)]
impl Echo {
    #[tool(description = "Repeat a message")]
    fn echo(&self, Parameters(Message { message }): Parameters<Message>) -> String {
        message
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        None => Echo.serve(stdio()).await?.waiting().await?,
        Some("pipes") => Echo.serve(stdio_pipes()).await?.waiting().await?,
        Some(other) => return Err(format!("no such transport: {other}").into()),
    };
    Ok(())
}
