"""The record that a controller keeps of a replica set and its master, and everything that may happen to it.

Pure: the name server's controller and a broker that goes by etcd decide with the same functions.

A *term* is the time in which one run of one replica is the master. The safety of everything else rests on two promises.

**No two masters in one term.** A record is replaced only as a whole, by one authority: the file of the name server's
controller, synced before the decision is told, or one key of etcd, by compare-and-set. Only `found` and `elect`, in
`election.py`, name a master, both with a term that was never given before. The record names the *run* of the master
too: a process that was started anew does not go on in the term of its forerunner, whose last writes it may not have.

**No two masters at one time.** The master holds a *lease* of `lease_s` seconds, renewed by every report.

* The master counts from the moment just before it *sends* a report that is answered with itself as the master. Once
  the lease is over it acknowledges nothing and serves nobody, until a later report is answered, unless all replicas
  that could be elected confirm its term to it: `minimq_broker.core.term_lease` says why that is safe, and why the next
  master waits `wait_s` for that.
* The authority counts from the moment at which it *received* the report: `elect` may be called only
  `takeover_after(lease_s)` later, a tenth more than the lease. (With etcd every replica counts for itself, from the
  moment at which it *saw* the report; its election holds only if no other report has come since.)

What is received or seen was sent before. So, whatever the network does to a report or to its answer, and however late
either comes, the lease ends at the master first, as long as its clock runs at least ten elevenths as fast as the other.
Clocks are monotonic and are never compared with each other; the master's has to go on while its machine sleeps. An
authority that starts knows no leases: it counts as if every recorded master had been heard at the start.

The lease does not guard against a pause between the look at it and what is done then. The in-sync set does: what is
acknowledged after a sync at all members is held by whoever is elected, since only members are, and members are taken
out of the record before the master stops waiting for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from minimq_common.errors import InvalidArgument, ReplicaSetChanged, StaleTerm, TermEnding
from minimq_common.names import check_address, check_broker, check_cluster

#: Leases are numbered by `term << 32`, in 64 bits with a sign.
MAX_TERM = (1 << 31) - 1
#: By how much more than the recorded term a report may claim. Terms grow by one in an election, so whoever claims more
#: was not told so by any controller; and what a false report costs is a part of the terms, never all of them.
MAX_TERM_GAP = 1 << 20
#: Most replicas of one broker name.
MAX_REPLICAS = 128
MAX_REPLICA_ID = (1 << 31) - 1
#: Longest lease, in seconds.
MAX_LEASE_S = 86_400.0
_MAX_NUMBER = (1 << 63) - 1
_MAX_VERSION = (1 << 53) - 1
_LOG_ID = re.compile(r"[\w-]{0,64}\Z", re.ASCII)
#: The bounds of the numbers in reports and records.
_RANGES = {
    **{"replica_id": (0, MAX_REPLICA_ID), "master_id": (0, MAX_REPLICA_ID), "min_in_sync": (1, MAX_REPLICAS)},
    **{"run": (1, _MAX_NUMBER), "master_run": (0, _MAX_NUMBER), "version": (1, _MAX_VERSION)},
    **{"term": (1, MAX_TERM), "last_term": (0, MAX_TERM), "log_term": (0, MAX_TERM)},
    **{"log_end": (0, _MAX_NUMBER), "common_end": (0, _MAX_NUMBER)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """The report of a replica to its controller, sent several times during a lease.

    Stored as JSON by these names: none is renamed or changes its meaning, and a new one has a default.
    """

    cluster: str
    #: The name that all of its replicas share.
    broker_name: str
    replica_id: int
    #: Drawn at random by each start of its process; above 0.
    run: int
    address: str
    #: It may be the first master of a replica set.
    founds: bool = True
    sync: bool = False
    min_in_sync: int = 1
    #: The latest term that its log knows; 0 when it knows none.
    last_term: int = 0
    log_end: int = 0
    #: What tells its log from those of other replica sets; "" when it is not known.
    log_id: str = ""
    #: It stops: if it is the master, it has acknowledged its last send already.
    resigns: bool = False
    #: As the master, up to where every member of the in-sync set has the log on disk; None: says nothing.
    common_end: int | None = None
    #: The latest record that it was told; None when it was told none.
    known: ReplicaSet | None = None

    def __post_init__(self) -> None:
        what = f"the report of {self.broker_name[:40]!r} ({self.replica_id})"
        _check_values(what, self)
        check_address(self.address)
        if self.known is not None:
            check_record(self.known)
            if self.known.key != self.key:
                raise InvalidArgument(f"{what} names the record of another broker: {self.known}")

    @property
    def key(self) -> tuple[str, str]:
        """The cluster and the broker name: which replica set it belongs to."""
        return self.cluster, self.broker_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """The decisions about the replicas of one broker name. Immutable: every decision makes a new record.

    Stored as JSON by these names: none is renamed or changes its meaning, and a new one has a default.
    """

    cluster: str
    #: The name that all of the replicas share.
    broker_name: str
    term: int
    master_id: int
    #: The run of the master; another run of the same replica is not the master. 0: nobody leads before the next
    #: election.
    master_run: int
    #: The replica ids that have all that is confirmed, the master's among them; only these are elected.
    in_sync: frozenset[int]
    version: int
    #: Whether the master waits for all of the in-sync set before it acknowledges.
    sync: bool
    min_in_sync: int
    #: How long the master holds a lease in this term, in seconds.
    lease_s: float
    addresses: Mapping[int, str] = field(default_factory=dict)
    log_term: int = 0
    #: What tells the log of the set from those of others; "" until a master has said it.
    log_id: str = ""
    #: The replica that was promoted by hand and becomes the master once the lease has run out; the lease is renewed
    #: no more.
    successor: int | None = None
    common_end: int = 0
    #: For how long the master confirms no older term before it serves, in seconds, since a former master may be
    #: serving with such confirmations; 0 if none can be.
    wait_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """The cluster and the broker name."""
        return self.cluster, self.broker_name

    @property
    def master_address(self) -> str:
        """The address of the master."""
        return self.addresses[self.master_id]

    @property
    def number(self) -> tuple[int, int]:
        """Term and version: of two records that one authority made, the later one has the larger."""
        return self.term, self.version

    @property
    def leadership(self) -> tuple[int, int, int]:
        """The term, and which run of which replica leads it."""
        return self.term, self.master_id, self.master_run

    def is_master(self, replica_id: int, run: int) -> bool:
        """Say whether a run of a replica is the master."""
        return (self.master_id, self.master_run) == (replica_id, run)

    def __str__(self) -> str:
        return f"{self.broker_name} (cluster {self.cluster})"


def shown_id_of_slave(replica_id: int, master_id: int) -> int:
    """Return the broker id under which a slave is registered: 0 is the master, so replica 0 gets its number."""
    return replica_id or master_id


def renew(replica_set: ReplicaSet, report: ReplicaReport) -> ReplicaSet:
    """Return the record after a report: the same one, or one with what it tells anew.

    That is the address of the reporter and, once the master has begun its term, the identity of the log.
    """
    check_place(replica_set, report)
    leads = leads_term(replica_set, report)
    log_id = report.log_id if leads and report.log_id else replica_set.log_id
    if replica_set.addresses.get(report.replica_id) == report.address and log_id == replica_set.log_id:
        return replica_set
    addresses = {**replica_set.addresses, report.replica_id: report.address}
    return replace(replica_set, addresses=addresses, log_id=log_id, version=replica_set.version + 1)


def leads_term(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Say whether a report is that of the master, and of the time since it began its term."""
    return replica_set.is_master(report.replica_id, report.run) and report.last_term >= replica_set.term


def renews_lease(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Say whether a report renews the lease of the master: it is the master's, and no other replica was promoted."""
    is_master = replica_set.is_master(report.replica_id, report.run)
    return is_master and not report.resigns and replica_set.successor is None


def check_not_ending(replica_set: ReplicaSet, report: ReplicaReport) -> None:
    """Check what a reporter may be answered with: a master takes the record for a renewal of its lease."""
    if replica_set.successor is not None and replica_set.is_master(report.replica_id, report.run):
        raise TermEnding(
            f"the term {replica_set.term} of replica {report.replica_id} of {replica_set} is not renewed: "
            f"replica {replica_set.successor} was promoted"
        )


def is_news(replica_set: ReplicaSet | None, report: ReplicaReport) -> bool:
    """Return true if a report gets its answer at once, and is not held back until there is another record.

    A replica that resigns is about to leave. A master whose term ends hears nothing before its successor is there.
    """
    if report.resigns:
        return True
    if replica_set is None:
        return False
    is_ending = replica_set.successor is not None and replica_set.is_master(report.replica_id, report.run)
    return (report.known is None or replica_set.number != report.known.number) and not is_ending


def repaired(replica_set: ReplicaSet | None, report: ReplicaReport) -> ReplicaSet | None:
    """Return the record as it has to be now that a replica says what it was told; the same one unless it is behind.

    An authority tells only what it has recorded. Whoever was told more was told it before the record was lost, or
    before an old copy was put in its place. Then what was told holds again: nobody is elected who was not in sync.

    If the record knows this very leadership, its master just goes on. Otherwise nobody knows who else was given a
    lease, here or there, so nobody leads until they are all over: the next election gives out a new term.
    """
    check_terms(replica_set, report)
    told = report.known
    if told is None:
        return replica_set
    if replica_set is not None:
        if told.log_id and replica_set.log_id and told.log_id != replica_set.log_id:
            return replica_set  # that set is no more, and another one has its name
        if told.number < replica_set.number:
            return replica_set
        # Both were made of the same old one: what the master was told is what it goes by.
        differs = (told.leadership, told.in_sync) != (replica_set.leadership, replica_set.in_sync)
        if told.number == replica_set.number and not (differs and told.is_master(report.replica_id, report.run)):
            return replica_set
        if told.leadership == replica_set.leadership:
            return replace(told, version=told.version + 1)
    return replace(told, master_run=0, version=told.version + 1)


def what_was_repaired(replica_set: ReplicaSet, report: ReplicaReport) -> str:
    """Return a sentence about a record that `repaired` has made."""
    then = "its master goes on" if replica_set.master_run else "nobody leads before the time of a lease is over"
    return (
        f"the record of {replica_set} was lost, or was put back to an old copy: replica {report.replica_id} had been "
        f"told more, which holds again, and {then}; what nobody who reports was told is lost"
    )


def change_in_sync(replica_set: ReplicaSet, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
    """Return the record with another in-sync set; the same one when this was done since the master knew the record.

    A set that is that already is recorded anew, so that no earlier question of the master, which may be on its way
    still, is carried out after this one.
    """
    wanted = frozenset(in_sync)
    check_in_sync(f"the set asked for {replica_set}", wanted)
    if known.term != replica_set.term:
        raise StaleTerm(
            f"the in-sync set of {replica_set} is not changed for term {known.term}: it is in term {replica_set.term}, "
            f"with replica {replica_set.master_id} as its master"
        )
    if replica_set.master_id not in wanted:
        raise InvalidArgument(f"the in-sync set of {replica_set} has to hold the master, {replica_set.master_id}")
    if replica_set.in_sync == wanted and known.version < replica_set.version:
        return replica_set
    if known.version != replica_set.version or replica_set.successor is not None:
        raise ReplicaSetChanged(f"the record of {replica_set} has changed meanwhile: report, and ask again")
    return replace(replica_set, in_sync=wanted, version=replica_set.version + 1)


def check_record(record: ReplicaSet) -> None:
    """Raise `InvalidArgument` when a value of a record is out of its bounds, or contradicts another one."""
    what = f"the record of {record.broker_name[:40]!r}"
    _check_values(what, record)
    if not 0 <= record.wait_s <= 2 * MAX_LEASE_S:
        raise InvalidArgument(f"{what} has a wait of {record.wait_s} s: it is at most {2 * MAX_LEASE_S:g} s")
    if not 0 < record.lease_s <= MAX_LEASE_S:
        raise InvalidArgument(f"{what} has a lease of {record.lease_s} s: it is above 0, and at most {MAX_LEASE_S:g} s")
    if len(record.addresses) > MAX_REPLICAS:
        raise InvalidArgument(f"{what} has {len(record.addresses)} replicas, the limit is {MAX_REPLICAS}")
    for replica_id, address in record.addresses.items():
        _check_range(what, "replica_id", replica_id)
        check_address(address)
    check_in_sync(what, record.in_sync)
    named = {record.master_id} if record.successor is None else {record.master_id, record.successor}
    if not named <= record.addresses.keys():
        raise InvalidArgument(f"{what} is not one: it names replica {max(named)} without an address")


def check_in_sync(what: str, in_sync: frozenset[int]) -> None:
    """Raise `InvalidArgument` when an in-sync set has too many members, or one that cannot be a replica."""
    if len(in_sync) > MAX_REPLICAS:
        raise InvalidArgument(f"{what} has {len(in_sync)} replicas in sync, the limit is {MAX_REPLICAS}")
    for replica_id in in_sync:
        _check_range(what, "replica_id", replica_id)


def check_terms(record: ReplicaSet | None, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` when a report claims a term that no controller can have given."""
    given = record.term if record is not None else 0
    claimed = max(report.last_term, report.known.term if report.known is not None else 0)
    if claimed > given + MAX_TERM_GAP:
        raise InvalidArgument(
            f"replica {report.replica_id} of {report.broker_name} claims term {claimed}, but its controller has given "
            f"{given}: more than {MAX_TERM_GAP} terms are never given in between; its data directory is damaged, or "
            "it is no replica"
        )


def check_place(record: ReplicaSet, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` when a replica has no place in a record, which has as many as it may have."""
    if report.replica_id not in record.addresses and len(record.addresses) >= MAX_REPLICAS:
        raise InvalidArgument(
            f"replica {report.replica_id} of {record} has no place: {MAX_REPLICAS} replicas are recorded, which is the "
            "limit"
        )


def _check_values(what: str, value: ReplicaReport | ReplicaSet) -> None:
    check_cluster(value.cluster)
    check_broker(value.broker_name)
    if not _LOG_ID.match(value.log_id):
        raise InvalidArgument(f"{what} has an invalid log id: {value.log_id[:40]!r}")
    for name in _RANGES:
        if (number := getattr(value, name, None)) is not None:
            _check_range(what, name, number)


def _check_range(what: str, name: str, number: int) -> None:
    least, most = _RANGES[name]
    if not least <= number <= most:
        raise InvalidArgument(f"{what} has {name} {number}: it is a number from {least} to {most}")
