"""A program that writes numbered transactions one after the other, to be killed: NAMESERVER TOPIC ATTEMPT PROGRESS."""

from __future__ import annotations

import sys
from pathlib import Path

from minimq.features.transactions.decisions import Transaction, staged_parts
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch.builder import BatchBuilder
from minimq_common.errors import TransactionEnded
from minimq_common.model import Message

#: Batches of each transaction.
BATCHES = 6


def write(nameserver: str, topic: str, attempt: str, progress: Path) -> None:
    """Go on after the last number that is known to be committed, for ever."""
    number = int(progress.read_text()) + 1
    options = ProducerOptions(send_timeout_s=30.0)
    with RecordsSender(nameserver, options) as sender, TransactionCommitter(nameserver) as ends:
        while True:
            transaction = Transaction("row", number)
            receipts, decided = [], False
            for at in range(BATCHES):
                records = BatchBuilder(1 << 20)
                records.add([Message(topic, f"{number} {attempt} {at}".encode())])
                try:
                    receipts.append(sender.send(topic, None, records, transaction=transaction).result())
                except TransactionEnded:
                    decided = True
            ends.commit(transaction, [topic], staged_parts(receipts), decided=decided)
            new = progress.with_suffix(f".{attempt}")
            new.write_text(str(number))
            new.replace(progress)
            number += 1


if __name__ == "__main__":
    _, given_nameserver, given_topic, given_attempt, given_progress = sys.argv
    write(given_nameserver, given_topic, given_attempt, Path(given_progress))
