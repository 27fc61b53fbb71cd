"""Event sourcing: an account's state is the sum of the events in its log, now or at any time before.

The log is the only truth. A program that starts again reads it from the beginning. `durability="fsync"` means
that an event is on the disk before the program acts on it.
"""

import json
import tempfile
from dataclasses import dataclass

import kreplica


@dataclass
class Account:
    balance: int = 0
    events: int = 0

    def apply(self, record: kreplica.Record) -> None:
        event = json.loads(record.value)
        self.balance += event["amount"] if event["type"] == "deposited" else -event["amount"]
        self.events += 1


def replayed(log: kreplica.Log, stop: int | None = None) -> Account:
    account = Account()
    for record in log.read(stop=stop):
        account.apply(record)
    return account


def record_event(log: kreplica.Log, account: Account, kind: str, amount: int) -> None:
    if kind == "withdrawn" and amount > account.balance:
        raise ValueError(f"cannot withdraw {amount}: the balance is {account.balance}")
    info = log.append_one(json.dumps({"type": kind, "amount": amount}).encode())
    account.apply(log[info.base_offset])


def main(directory: str) -> None:
    with kreplica.Log.open(f"{directory}/account-0", durability="fsync") as log:
        account = replayed(log)
        record_event(log, account, "deposited", 100)
        record_event(log, account, "withdrawn", 30)
        try:
            record_event(log, account, "withdrawn", 500)
        except ValueError as error:
            print(error)

    with kreplica.Log.open(f"{directory}/account-0") as log:  # as after a restart
        print("balance now:", replayed(log).balance)
        print("balance after the first event:", replayed(log, stop=1).balance)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
