"""A server's answers, one connection each."""

import contextlib

import ground


def ask(server, *words):
    with contextlib.closing(ground.connect(server.target)) as client:
        return client.execute_command(*words)


def run_id(server):
    """Another one after each start."""
    with contextlib.closing(ground.connect(server.target)) as client:
        return client.info("server")["run_id"]
