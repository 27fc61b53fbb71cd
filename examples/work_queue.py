"""A work queue: workers share a topic's messages, and a message that fails is delivered again.

A share group gives each message to one worker at a time. A message that no worker can process is rejected
after its third delivery, so that it does not block the others.
"""

import threading
from collections import Counter

import kreplica

DELIVERIES = 3


def work(cluster: kreplica.Cluster, done: Counter[bytes], given_up: list[bytes]) -> None:
    with cluster.share("jobs", group="workers", auto_accept=False, timeout=2) as messages:
        for message in messages:
            try:
                if message.value == b"broken":
                    raise ValueError("this job cannot be done")
                done[message.value] += 1
                message.accept().result(timeout=20)
            except ValueError:
                if message.delivery_count < DELIVERIES:
                    message.release()  # for any worker, at once
                else:
                    given_up.append(message.value)
                    message.reject()


def main() -> None:
    done: Counter[bytes] = Counter()
    given_up: list[bytes] = []
    with kreplica.Cluster(brokers=1) as cluster:
        cluster.create_topic("jobs", partitions=2)
        jobs = [b"job-%d" % number for number in range(20)]
        cluster.append("jobs", [*jobs, b"broken"]).result(timeout=20)
        workers = [threading.Thread(target=work, args=(cluster, done, given_up)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print("done:", sum(done.values()), "of", len(jobs))
    print("given up:", given_up)


if __name__ == "__main__":
    main()
