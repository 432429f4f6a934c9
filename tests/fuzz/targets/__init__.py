"""Every decoder of every role."""

from __future__ import annotations

from fuzz.targets import batches, store, texts, wire

TARGETS = (*batches.TARGETS, *store.TARGETS, *texts.TARGETS, *wire.TARGETS)
