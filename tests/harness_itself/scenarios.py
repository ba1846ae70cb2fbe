"""What the processes of `test_killing` do; they start sooner without pytest."""

import threading

import ground
from ground.redis.connect import connect_async
from tests.harness import doomed


def three_steps(url):
    client = ground.connect(url)
    client.rpush("steps", "one")
    client.rpush("steps", "two")
    client.rpush("steps", "three")
    client.close()
    return "done"


async def async_steps(url):
    client = connect_async(url)
    await step(client, "one")
    await step(client, "two")
    await client.aclose()


async def step(client, name):
    await client.rpush("steps", name)


def in_a_thread(url):
    thread = threading.Thread(target=three_steps, args=[url])
    thread.start()
    thread.join()


def waits_for_ever():
    doomed.reached("waiting")
    threading.Event().wait()


def fails():
    raise RuntimeError("as it should")
