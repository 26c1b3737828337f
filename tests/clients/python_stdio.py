"""The official Python SDK against the program: list, call every tool, 64 calls at once, cancel, close.

usage: python_stdio.py PROGRAM [ARGUMENT…]   (the arguments start the server)

Works with both majors of the SDK: 1.x shakes hands, 2.x asks `server/discover` first and is run both ways.
Each validates structured output against the tool's output schema by itself.
"""

import json
import sys
import time
from importlib.metadata import version

import anyio

SAMPLES = [
    ("search", {"query": "backups"}),
    ("search", {"query": "nothing_of_this_kind"}),
    ("bulk_search", {"queries": [{"query": "port"}, {"query": "x", "k": 0}]}),
    ("bulk_search", {"queries": []}),
    ("ask", {"question": "How are backups made?", "extractive": True}),
    ("fetch", {"path": "notes.txt"}),
    ("schema", {}),
    ("doctor", {}),
    ("ingest_file", {"path": "notes.txt"}),
    ("ingest_stdin", {"text": "# Plan\n\nShip on Friday.", "title": "Plan"}),
]


def plain(result):
    return result.model_dump(by_alias=True, mode="json")


async def exercise(session, cancel):
    listed = plain(await session.list_tools())["tools"]
    names = [tool["name"] for tool in listed]
    assert names[:2] == ["search", "bulk_search"], names
    uncalled = set(names) - {name for name, _ in SAMPLES}
    assert not uncalled, f"no sample for {uncalled}"
    for name, arguments in SAMPLES:
        if name in names:
            result = plain(await session.call_tool(name, arguments))
            assert not result["isError"], (name, result)
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"], name

    failed = plain(await session.call_tool("search", {"query": "x", "k": 0}))
    assert failed["isError"] and not failed.get("structuredContent"), failed
    assert json.loads(failed["content"][0]["text"])["code"] == "invalid_input"

    found = plain(await session.call_tool("search", {"query": "backups"}))["structuredContent"]["hits"][0]
    uri = f"kebab://doc/{found['doc_id']}"
    read = plain(await session.read_resource(uri))["contents"][0]
    assert read["text"].startswith("# Backups"), read
    assert len(plain(await session.list_resource_templates())["resourceTemplates"]) == 2

    seen = []

    async def one(number):
        result = plain(await session.call_tool("search", {"query": "port", "k": 1 + number % 10}))
        seen.append(result["structuredContent"]["hits"][0]["doc_path"])

    async with anyio.create_task_group() as tasks:
        for number in range(64):
            tasks.start_soon(one, number)
    assert seen == ["notes.txt"] * 64, seen

    steps = []

    async def progress(done, total, message):
        steps.append(done)

    queries = [{"query": f"port store copy {number}"} for number in range(100)]
    await session.call_tool("bulk_search", {"queries": queries}, progress_callback=progress)
    assert steps == sorted(set(steps)) and steps, steps

    await cancel(session, lambda: session.call_tool("bulk_search", {"queries": queries}))
    again = plain(await session.call_tool("search", {"query": "port"}))
    assert not again["isError"]
    return len(names)


async def cancel_by_scope(_, call):
    """2.x tells the server when the scope of a call is left."""
    with anyio.move_on_after(0.001):
        await call()


async def cancel_by_hand(session, call):
    """1.x has to be told to tell the server."""
    from mcp import types

    number = session._request_id  # The id of the next request, which the SDK keeps to itself.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.sleep(0.001)
        params = types.CancelledNotificationParams(requestId=number, reason="not wanted any more")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await session.send_notification(types.ClientNotification(notification))
        await session.send_ping()
        tasks.cancel_scope.cancel()


async def main(command, arguments):
    from mcp import StdioServerParameters

    server = StdioServerParameters(command=command, args=arguments)
    release = version("mcp")
    if release.startswith("1."):
        from mcp import ClientSession
        from mcp.client.stdio import stdio_client

        async with stdio_client(server) as (read, write):
            async with ClientSession(read, write) as session:
                welcome = await session.initialize()
                await session.send_ping()
                count = await exercise(session, cancel_by_hand)
                started = time.monotonic()
        tell(release, welcome.protocolVersion, count, started)
        return
    from mcp import Client

    for mode in ("legacy", "auto", "2026-07-28"):
        async with Client(server, mode=mode) as client:
            count = await exercise(client, cancel_by_scope)
            revision = client.protocol_version
            started = time.monotonic()
        assert (revision == "2026-07-28") == (mode != "legacy"), (mode, revision)
        tell(release, revision, count, started)


def tell(release, revision, count, started):
    ended = 1000 * (time.monotonic() - started)
    assert ended < 2000, f"closing took {ended:.0f} ms"
    print(f"mcp {release} over {revision}: {count} tools, closed in {ended:.0f} ms")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
