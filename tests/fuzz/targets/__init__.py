"""Every decoder of every role."""

from __future__ import annotations

from fuzz.targets import batches, client, store, texts, wire

TARGETS = (*batches.TARGETS, *client.TARGETS, *store.TARGETS, *texts.TARGETS, *wire.TARGETS)
