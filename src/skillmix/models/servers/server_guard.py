"""Two programs for the servers that skillmix starts; this module imports nothing from skillmix.

`guard COMMAND …` runs a server until standard input closes, which happens however skillmix ends. `xllamacpp --model
FILE …` is a llama.cpp server from the package xllamacpp, which has no command.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time


def guard(command: list[str]) -> int:
    """Run a command in this process's group, and end the whole group when standard input closes."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the signal is for the server, and this process ends with the server

    def end() -> None:
        sys.stdin.buffer.read()
        os.killpg(0, signal.SIGTERM)
        time.sleep(10)  # give the server time to shut down
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    server.wait()
    os.killpg(0, signal.SIGKILL)  # also end the server's child processes
    return 1


def xllamacpp(arguments: list[str]) -> int:
    """Serve a GGUF file with the options of `llama-server` that skillmix uses."""
    import xllamacpp as llama

    parser = argparse.ArgumentParser()
    kinds = {str: "model alias host", int: "port parallel ctx-size top-k", float: "top-p min-p repeat-penalty"}
    for kind, names in kinds.items():
        for name in names.split():
            parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    params = llama.CommonParams()
    params.model.path, params.hostnames, params.port = given.model, [given.host], given.port
    params.model_alias = {given.alias}
    params.n_parallel, params.n_ctx, params.cpuparams.n_threads = given.parallel, given.ctx_size, given.threads
    params.sampling.top_k, params.sampling.top_p, params.sampling.min_p = given.top_k, given.top_p, given.min_p
    params.sampling.penalty_repeat = given.repeat_penalty
    params.lora_adapters = [llama.CommonAdapterLoraInfo(adapter, 1.0) for adapter in given.lora]
    server = llama.Server(params)
    print(f"xllamacpp listens at {server.listening_address}", flush=True)  # noqa: T201  # a line in the server's log
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit({"guard": guard, "xllamacpp": xllamacpp}[sys.argv[1]](sys.argv[2:]))
