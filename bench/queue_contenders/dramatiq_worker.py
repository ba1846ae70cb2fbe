"""dramatiq: 64 threads, at which it is fastest on jobs that do nothing. It stores no results."""

import counting
import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=counting.URL)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def work() -> None:
    counting.blocking_job()


for _ in range(counting.COUNT):
    work.send()
worker = dramatiq.Worker(broker, worker_threads=64)
worker.start()
broker.join("bench")
counting.tell()
worker.stop()
