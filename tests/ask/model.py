"""What the scripts of this folder share: a model's server, the program, and a folder for its index."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager

HERE = os.path.dirname(os.path.abspath(__file__))


@contextmanager
def served():
    """The settings of a model: those of the environment, else a server of our own."""
    if os.environ.get("KEBAB_MODELS_LLM_MODEL"):
        yield {name: value for name, value in os.environ.items() if name.startswith("KEBAB_MODELS_LLM_")}
        return
    server = subprocess.Popen(
        [sys.executable, os.path.join(HERE, "serve.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), f"the server said {address!r}"
        yield {
            "KEBAB_MODELS_LLM_PROVIDER": "openai",
            "KEBAB_MODELS_LLM_MODEL": "smollm2-135m-instruct",
            "KEBAB_MODELS_LLM_ENDPOINT": address,
        }
    finally:
        server.stdin.close()
        server.wait(20)


class Program:
    def __init__(self, path, root, data, settings, config=None):
        self.args = [path, "--json", "--root", root, "--data-dir", data]
        if config:
            self.args += ["--config", config]
        self.env = {**os.environ, **settings}

    def run(self, *args, codes=(0,)):
        done = subprocess.run([*self.args, *args], capture_output=True, text=True, env=self.env, timeout=600)
        assert done.returncode in codes, (args, done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *args, codes=(0,)):
        return json.loads(self.run(*args, codes=codes).stdout)

    def lines(self, uri):
        """The text that a citation leads to."""
        return self.json("fetch", uri)["text"]


@contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="kebab-ask-") as folder:
        yield folder
