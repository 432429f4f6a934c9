"""Samples a cluster periodically, and remembers the figures of the last hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from minimq import Admin
from minimq.admin.activity import ActivityReader, ClusterActivity
from minimq_common.errors import MinimqError, NotAuthenticated
from minimq_console.charts import Chart, History

_log = logging.getLogger(__name__)

#: After a sample the sampler sleeps for a multiple of the CPU time that the process used meanwhile, up to a maximum in
#: seconds: a large cluster must not cost more than a share of a core.
_REST_FACTOR, _MAX_REST_S = 4, 20.0
#: Age in seconds from which a sample counts as old.
OLD_S = 15.0


_NO_ACTIVITY = ClusterActivity()


@dataclass(frozen=True, slots=True)
class Sample:
    number: int
    #: From the last read that succeeded, at this time; None before the first.
    activity: ClusterActivity = _NO_ACTIVITY
    at: datetime | None = None
    #: Why the last read failed; None if it succeeded.
    error: str | None = None
    #: The cluster no longer accepts the credentials of the visitor.
    is_rejected: bool = False

    def problems(self, now: datetime) -> tuple[str, ...]:
        """Return sentences about what is wrong with the sample itself; none if it is fresh."""
        if self.at is None:
            return (self.error or "the cluster has not answered yet",)
        age_s = (now - self.at).total_seconds()
        if self.error is not None:
            return (f"the cluster cannot be read: {self.error}; what is shown is {age_s:.0f} s old",)
        return (f"the cluster answers slowly: what is shown is {age_s:.0f} s old",) if age_s > OLD_S else ()


class Sampler:
    """A thread that samples a cluster. Thread-safe."""

    def __init__(self, source: Admin, interval_s: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = ActivityReader(source)
        self._interval_s = interval_s
        self._clock = clock
        self._changed = threading.Condition()  # protects the following
        self._sample = Sample(0)
        self._history = History()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minimq-console-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def sample(self) -> Sample:
        with self._changed:
            return self._sample

    def first_sample(self, timeout_s: float) -> Sample:
        """Return the last sample; wait for the first one, at most for `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._sample.number > 0, timeout_s)
            return self._sample

    def chart(self, key: Hashable, title: str, unit: str) -> Chart:
        """Return the last hour of a figure, by its key: see `_remember`."""
        with self._changed:
            return Chart(title, unit, tuple(self._history.points(key, self._clock())))

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.process_time()
            self._look()
            computed_s = time.process_time() - began
            self._stopping.wait(max(self._interval_s, min(_REST_FACTOR * computed_s, _MAX_REST_S)))

    def _look(self) -> None:
        activity, error, is_rejected = None, None, False
        try:
            activity = self._reader.read()
        except MinimqError as failure:  # the next sample may succeed
            error, is_rejected = failure.message, isinstance(failure, NotAuthenticated)
        except Exception:  # noqa: BLE001 - whatever it is, the console goes on and shows that it knows nothing new
            _log.exception("the cluster could not be read")
            error = "the console failed; its log says why"
        with self._changed:
            last = self._sample
            if activity is None:
                self._sample = Sample(last.number + 1, last.activity, last.at, error, is_rejected)
            else:
                self._sample = Sample(last.number + 1, activity, datetime.now(UTC), None)
                self._remember(activity)
            self._changed.notify_all()

    def _remember(self, activity: ClusterActivity) -> None:
        """Record figures by ("cluster", "in" or "out"), ("topic", name), and ("group", name, "lag" or "out")."""
        figures: dict[Hashable, float | None] = {
            ("cluster", "in"): _sum(each.in_per_s for each in activity.brokers),
            ("cluster", "out"): _sum(each.out_per_s for each in activity.brokers),
        }
        for group in activity.groups:
            figures["group", group.group.group, "lag"] = float(group.group.lag)
            figures["group", group.group.group, "out"] = group.out_per_s
        figures |= {("topic", each.topic): each.in_per_s for each in activity.topics}
        self._history.record(figures, self._clock())


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
