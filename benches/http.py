#!/usr/bin/env python3
"""The server over HTTP: pings on one connection, beside the official Python SDK's minimal server under the same client,
what a line of `--connect` adds to them and keeps in memory, and searches while a thousand connections drip a byte a second and 64 bodies stay half-sent.

usage: python3 benches/http.py PROGRAM [--sdk PYTHON]

PROGRAM is a release binary; PYTHON an interpreter that has the package `mcp` (1.x), without which the comparison is left
out. Ends with 1 where a figure misses its target.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PINGS = 3000
ROUNDS = 5
DRIPS = 1000
HALVES = 64
ATTACK_SECONDS = 20
WARM_SECONDS = 4

SDK_SERVER = """
import sys
from mcp.server.fastmcp import FastMCP
server = FastMCP("minimal", host="127.0.0.1", port=int(sys.argv[1]), json_response=True, log_level="ERROR")
server.run(transport="streamable-http")
"""

missed = []


def figure(name, value, unit, limit=None):
    met = limit is None or value <= limit
    print(f"{name:58} {value:10.3f} {unit:4}" + ("" if limit is None else f"  (≤ {limit:g}{'' if met else ': MISSED'})"), flush=True)
    if not met:
        missed.append(name)


def field(head, name):
    at = head.lower().find(b"\r\n" + name + b":")
    return None if at < 0 else head[at + len(name) + 3 :].split(b"\r\n", 1)[0].strip()


class Client:
    """One connection that is kept, with as little of its own as can be."""

    def __init__(self, port, token):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fields = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        )

    def request(self, message, more=""):
        body = json.dumps(message)
        return f"{self.fields}{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    def ask(self, request):
        """(status, head, body) of the answer, None where the connection was closed."""
        self.socket.sendall(request)
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            more = self.socket.recv(65536)
            if not more:
                return None
            got += more
        head = got[:end]
        length = int(field(head, b"content-length") or 0)
        while len(got) < end + 4 + length:
            got += self.socket.recv(65536)
        return int(got[9:12]), head, got[end + 4 :]

    def shake_hands(self):
        """The field that names the session."""
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        status, head, _ = self.ask(self.request({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
        assert status == 200, head
        session = field(head, b"mcp-session-id").decode()
        session = f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n"
        self.ask(self.request({"jsonrpc": "2.0", "method": "notifications/initialized"}, session))
        return session


class Pinger:
    def __init__(self, port, token):
        self.client = Client(port, token)
        self.ping = self.client.request({"jsonrpc": "2.0", "id": 1, "method": "ping"}, self.client.shake_hands())

    def round(self, count):
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            answer = self.client.ask(self.ping)
            times.append(time.perf_counter() - begun)
            assert answer and answer[0] == 200, answer
        return times


def search(client):
    return client.request(
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {
                "name": "search",
                "arguments": {"query": "backups", "mode": "lexical"},
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        },
        "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: search\r\n",
    )


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(port):
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server does not listen")


def pings(port, token, sdk):
    ours = Pinger(port, token)
    peer, peers = None, None
    if sdk:
        theirs = free_port()
        peer = subprocess.Popen([sdk, "-c", SDK_SERVER, str(theirs)], stdout=subprocess.DEVNULL)
    try:
        if peer:
            wait_for(theirs)
            peers = Pinger(theirs, "none")
        our_times, their_times = [], []
        for _ in range(ROUNDS):
            our_times += ours.round(PINGS)
            if peers:
                their_times += peers.round(PINGS // 10)
    finally:
        if peer:
            peer.kill()
            peer.wait()
    median = statistics.median(our_times) * 1e6
    figure("keep-alive ping, p50", median, "µs", 100)
    figure("keep-alive ping, p99", sorted(our_times)[len(our_times) * 99 // 100] * 1e6, "µs")
    if peers:
        their_median = statistics.median(their_times) * 1e6
        figure("the Python SDK's server, p50", their_median, "µs")
        figure("ratio of the two", median / their_median, "", 0.2)


def resident(pid, field="VmRSS"):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) / 1024


def proportional(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024


class Lines:
    """A server over pipes."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)

    def ask(self, message):
        self.process.stdin.write(message)
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def adapter(program, place, environment):
    """A line of `--connect` beside a server of its own."""
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    call = {"name": "search", "arguments": {"query": "plan of the backups"}}
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode() + b"\n"
    line = Lines([program, "mcp", "--connect", "--ensure-server=false", *place], environment)
    alone = Lines([program, "mcp", "--no-sync", *place], environment)
    for server in (line, alone):
        assert b'"result"' in server.ask(call)

    def median(server, message):
        times = []
        for _ in range(1000):
            begun = time.perf_counter()
            server.ask(message)
            times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1e6

    for name, message in (("ping", ping), ("search", call)):
        # In turn, so that both meet the same machine.
        added = [median(line, message) - median(alone, message) for _ in range(ROUNDS)]
        figure(f"a line of --connect: added to a {name}, p50", statistics.median(added), "µs", 100)
    pid = line.process.pid
    figure("a line of --connect: memory at work", resident(pid), "MiB")
    figure("a line of --connect: its share of that", proportional(pid), "MiB")
    time.sleep(1.5)
    figure("a line of --connect: memory when idle", resident(pid), "MiB", 3)
    begun = time.perf_counter()
    line.ask(ping)
    figure("a line of --connect: the first ping after that", (time.perf_counter() - begun) * 1e6, "µs")
    line.end()
    alone.end()


def besiege(port, token, over):
    """Keeps as many connections open as it can; whoever is thrown out comes back a second later."""
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"jsonrpc"'
    ).encode()
    attackers = {}

    def join(number):
        try:
            link = socket.create_connection(("127.0.0.1", port), timeout=1)
            link.setblocking(False)
            link.send(head if number < HALVES else b"P")
            attackers[number] = link
        except OSError:
            attackers.pop(number, None)

    while not over.is_set():
        begun = time.monotonic()
        for number in range(HALVES + DRIPS):
            if over.is_set():
                break
            link = attackers.get(number)
            try:
                if link is None:
                    raise OSError
                try:
                    if link.recv(4096) == b"":
                        raise OSError
                except BlockingIOError:
                    pass
                if number >= HALVES:
                    link.send(b"P")
            except OSError:
                if link is not None:
                    link.close()
                join(number)
        over.wait(max(0, 1 - (time.monotonic() - begun)))
    for link in attackers.values():
        link.close()


def attack(server, port, token):
    over = threading.Event()
    # A process of its own, so that it does not slow this one's clock.
    attacker = os.fork()
    if attacker == 0:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 4096, hard))
        besiege(port, token, over)
        os._exit(0)
    try:
        time.sleep(2)
        kept = Client(port, token)
        request = search(kept)
        kept_times, fresh_times, refused, closed, lost = [], [], 0, 0, 0
        # Until then the first searches load what every later one uses.
        early = None
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < ATTACK_SECONDS:
            if early is None and elapsed > WARM_SECONDS:
                early = resident(server.pid)
            begun = time.perf_counter()
            answer = None
            try:
                answer = kept.ask(request)
            except OSError:
                pass
            if answer is None or answer[0] != 200:
                lost += 1
                kept = Client(port, token)
            else:
                kept_times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            try:
                fresh = Client(port, token)
                answer = fresh.ask(request)
                fresh.socket.close()
                if answer is None:
                    closed += 1
                elif answer[0] == 200:
                    fresh_times.append(time.perf_counter() - begun)
                else:
                    refused += 1
            except OSError:
                closed += 1
            time.sleep(0.01)
        late = resident(server.pid)
    finally:
        os.kill(attacker, 9)
        os.waitpid(attacker, 0)
    at = lambda times, share: sorted(times)[int(len(times) * share)] * 1e3
    asked = len(fresh_times) + refused + closed
    figure(f"attacked: search on a connection that is kept, p50 ({len(kept_times)})", at(kept_times, 0.5), "ms")
    figure("attacked: search on a connection that is kept, p99", at(kept_times, 0.99), "ms", 50)
    figure(f"attacked: search on a new connection, p50 ({len(fresh_times)})", at(fresh_times, 0.5), "ms")
    figure("attacked: search on a new connection, p99", at(fresh_times, 0.99), "ms", 50)
    figure("attacked: new connections told to come later", 100 * refused / asked, "%")
    figure("attacked: new connections closed", 100 * closed / asked, "%")
    figure("attacked: kept connections lost", lost, "")
    figure("attacked: memory at the end against the first seconds", late - early, "MiB", 2)
    figure("attacked: memory, peak", resident(server.pid, "VmHWM"), "MiB")
    time.sleep(1)
    after = Client(port, token)
    begun = time.perf_counter()
    answer = after.ask(search(after))
    assert answer and answer[0] == 200, answer
    figure("after the attack: search on a new connection", (time.perf_counter() - begun) * 1e3, "ms", 50)
    threads = len(os.listdir(f"/proc/{server.pid}/task"))
    figure("after the attack: threads", threads, "", 24)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("program")
    options.add_argument("--sdk", metavar="PYTHON")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        root.mkdir()
        for number in range(200):
            Path(root, f"{number}.md").write_text(f"# Note {number}\n\nBackups of the store are made nightly, by plan {number}.\n")
        arguments = ["mcp", "--transport", "http", "--http-port", "0", "--root", root, "--data-dir", Path(folder, "data")]
        environment = dict(os.environ, KEBAB_MODELS_EMBEDDING_PROVIDER="none")
        ingest = [options.program, "ingest", "--root", root, "--data-dir", Path(folder, "data")]
        subprocess.run(ingest, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = subprocess.Popen([options.program, *arguments], stderr=subprocess.PIPE, text=True, env=environment)
        try:
            line = ""
            while not line.startswith("{"):
                line = server.stderr.readline()
            ready = json.loads(line)
            threading.Thread(target=server.stderr.read, daemon=True).start()
            port = int(ready["url"].removesuffix("/mcp").rsplit(":", 1)[1])
            token = Path(ready["token_file"]).read_text()
            pings(port, token, options.sdk)
            adapter(options.program, ["--root", root, "--data-dir", Path(folder, "data")], environment)
            attack(server, port, token)
        finally:
            server.kill()
            server.wait()
    if not options.sdk:
        print("The comparison with the Python SDK is left out: no --sdk.")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
