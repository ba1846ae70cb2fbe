"""huey: 64 threads. What returns None it stores no result of."""

import os
import threading

import counting
from huey import RedisHuey

huey = RedisHuey("bench", url=counting.URL)
over = threading.Event()


@huey.task()
def work() -> None:
    if counting.blocking_job():
        over.set()


for _ in range(counting.COUNT):
    work()
consumer = huey.create_consumer(workers=64, worker_type="thread", periodic=False)
consumer.start()
over.wait()
counting.tell()
os._exit(0)  # its threads end at their next poll; nobody waits for that here
