"""The official Python SDK against a running server over HTTP: what `python_stdio.py` does over pipes.

usage: python_http.py URL TOKEN_FILE

1.x shakes hands and has a session; 2.x is run both ways.
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path

import anyio

from python_stdio import cancel_by_hand, cancel_by_scope, exercise, tell


async def main(url, token_file):
    headers = {"Authorization": "Bearer " + Path(token_file).read_text()}
    release = version("mcp")
    if release.startswith("1."):
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url, headers=headers) as (read, write, _):
            async with ClientSession(read, write) as session:
                welcome = await session.initialize()
                await session.send_ping()
                count = await exercise(session, cancel_by_hand)
                started = time.monotonic()
        tell(release, welcome.protocolVersion, count, started)
        return
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    for mode in ("legacy", "auto", "2026-07-28"):
        async with httpx2.AsyncClient(headers=headers) as http:
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                count = await exercise(client, cancel_by_scope)
                revision = client.protocol_version
                started = time.monotonic()
            assert (revision == "2026-07-28") == (mode != "legacy"), (mode, revision)
            tell(release, revision, count, started)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
