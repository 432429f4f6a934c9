"""The record that a controller keeps of a replica set and its master, and all changes that are allowed to it.

Pure: the controller in a name server and a broker with etcd make their decisions with the same functions.

A *term* is the period in which one run (process) of one replica is the master. Safety rests on two promises.

**No two masters in one term.** Only one authority replaces a record, and always as a whole: the name server's
controller, in a file that is synced before anyone learns the decision, or etcd, in one key by compare-and-set. Only
`found` and `elect`, in `election.py`, appoint a master, both with a term that was never used before. The record also
names the *run* of the master: a restarted process may have lost its last writes, so it does not continue its term.

**No two masters at one time.** The master holds a *lease* of `lease_s` seconds, renewed by every report.

* The master's lease starts just before it *sends* a report that is answered with itself as the master. When the lease
  has ended, the master acknowledges nothing and serves no requests until a later report is answered, unless all
  electable replicas confirm its term. `minimq_broker.replication.term_lease` explains why that is safe, and why the
  next master first waits `wait_s`.
* At the authority, the lease starts when it *receives* the report, and `elect` may be called only
  `takeover_after(lease_s)` later, which is 1.1 times the lease. (With etcd every replica measures for itself, from the
  moment it *saw* the report. Its election holds only if no other report has arrived since.)

A report is received or seen after it was sent. So, however the network delays or loses reports and answers, the lease
ends at the master first, as long as its clock runs at least 10/11 as fast as the other. Clocks are monotonic and never
compared with each other; the master's must keep running while its machine sleeps. An authority that has just started
knows no leases, so it assumes that every recorded master reported at that moment.

The lease does not cover a pause between checking it and acting on it. The in-sync set does: what is acknowledged after
a sync at all members is in the log of every replica that can be elected, because only members are elected, and a member
is removed from the record before the master stops waiting for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from minimq_common.errors import InvalidArgument, ReplicaSetChanged, StaleTerm, TermEnding
from minimq_common.names import check_address, check_broker, check_cluster

#: Epochs of leases on queues start at `term << 32`, in signed 64 bits.
MAX_TERM = (1 << 31) - 1
#: A report may claim a term at most this far above the recorded one. Elections add 1, so no controller has given out
#: more; and a false report cannot use up all terms.
MAX_TERM_GAP = 1 << 20
#: Replicas of one broker name.
MAX_REPLICAS = 128
MAX_REPLICA_ID = (1 << 31) - 1
MAX_LEASE_S = 86_400.0
_MAX_NUMBER = (1 << 63) - 1
_MAX_VERSION = (1 << 53) - 1
_LOG_ID = re.compile(r"[\w-]{0,64}\Z", re.ASCII)
#: The ranges of the numbers in reports and records.
_RANGES = {
    **{"replica_id": (0, MAX_REPLICA_ID), "master_id": (0, MAX_REPLICA_ID), "min_in_sync": (1, MAX_REPLICAS)},
    **{"run": (1, _MAX_NUMBER), "master_run": (0, _MAX_NUMBER), "version": (1, _MAX_VERSION)},
    **{"term": (1, MAX_TERM), "last_term": (0, MAX_TERM), "log_term": (0, MAX_TERM)},
    **{"log_end": (0, _MAX_NUMBER), "common_end": (0, _MAX_NUMBER)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """The report of a replica to its controller, sent several times during a lease.

    Stored as JSON under these names: never rename a field or change its meaning, and give each new one a default.
    """

    cluster: str
    #: The name that all of its replicas share.
    broker_name: str
    replica_id: int
    #: Random number above 0, chosen at each start of the process.
    run: int
    address: str
    #: The replica may become the first master of a replica set.
    founds: bool = True
    sync: bool = False
    min_in_sync: int = 1
    #: The latest term in its log; 0 if there is none.
    last_term: int = 0
    log_end: int = 0
    #: Identifies the log of a replica set; "" if not known.
    log_id: str = ""
    #: The replica is stopping. If it is the master, it will not acknowledge any more sends.
    resigns: bool = False
    #: From the master: every member of the in-sync set has the log on disk up to here; None if not reported.
    common_end: int | None = None
    #: The latest record that it received; None if none.
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
        """Cluster and broker name, which identify the replica set."""
        return self.cluster, self.broker_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """The record about the replicas of one broker name. Immutable: every decision makes a new record.

    Stored as JSON under these names: never rename a field or change its meaning, and give each new one a default.
    """

    cluster: str
    #: The name that all of the replicas share.
    broker_name: str
    term: int
    master_id: int
    #: The run of the master; another run of the same replica is not the master. 0 means no master until the next
    #: election.
    master_run: int
    #: Replica ids, including the master's, that have all confirmed data. Only these can be elected.
    in_sync: frozenset[int]
    version: int
    #: The master acknowledges a write only when the whole in-sync set has it.
    sync: bool
    min_in_sync: int
    #: Duration of the master's lease in this term.
    lease_s: float
    addresses: Mapping[int, str] = field(default_factory=dict)
    #: The latest term in the master's log when it was elected.
    log_term: int = 0
    #: Identifies the log of the set; "" until a master has reported it.
    log_id: str = ""
    #: A replica that was promoted by hand. It becomes the master when the lease has ended, which is not renewed.
    successor: int | None = None
    common_end: int = 0
    #: The master serves only this long after it last confirmed an older term, since a former master may be serving with
    #: such confirmations; 0 if none can be.
    wait_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.cluster, self.broker_name

    @property
    def master_address(self) -> str:
        return self.addresses[self.master_id]

    @property
    def number(self) -> tuple[int, int]:
        """Term and version; they grow with every record of one authority."""
        return self.term, self.version

    @property
    def leadership(self) -> tuple[int, int, int]:
        """The term, and the replica and run that lead it."""
        return self.term, self.master_id, self.master_run

    def is_master(self, replica_id: int, run: int) -> bool:
        return (self.master_id, self.master_run) == (replica_id, run)

    def __str__(self) -> str:
        return f"{self.broker_name} (cluster {self.cluster})"


def shown_id_of_slave(replica_id: int, master_id: int) -> int:
    """Return the broker id of a slave. 0 means the master, so a slave with replica id 0 gets the master's id."""
    return replica_id or master_id


def renew(replica_set: ReplicaSet, report: ReplicaReport) -> ReplicaSet:
    """Return the record with the address from a report and, from the master, its log id; the same if unchanged."""
    check_place(replica_set, report)
    leads = leads_term(replica_set, report)
    log_id = report.log_id if leads and report.log_id else replica_set.log_id
    if replica_set.addresses.get(report.replica_id) == report.address and log_id == replica_set.log_id:
        return replica_set
    addresses = {**replica_set.addresses, report.replica_id: report.address}
    return replace(replica_set, addresses=addresses, log_id=log_id, version=replica_set.version + 1)


def leads_term(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Tell whether a report is from the master, after it has begun its term."""
    return replica_set.is_master(report.replica_id, report.run) and report.last_term >= replica_set.term


def renews_lease(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Tell whether a report renews the lease: it comes from the master, and no other replica was promoted."""
    is_master = replica_set.is_master(report.replica_id, report.run)
    return is_master and not report.resigns and replica_set.successor is None


def check_not_ending(replica_set: ReplicaSet, report: ReplicaReport) -> None:
    """Raise `TermEnding` for a master whose lease must not be renewed; it would take any record for a renewal."""
    if replica_set.successor is not None and replica_set.is_master(report.replica_id, report.run):
        raise TermEnding(
            f"the term {replica_set.term} of replica {report.replica_id} of {replica_set} is not renewed: "
            f"replica {replica_set.successor} was promoted"
        )


def is_news(replica_set: ReplicaSet | None, report: ReplicaReport) -> bool:
    """Tell whether to answer a report at once. Otherwise the answer waits until the record changes."""
    if report.resigns:
        return True
    if replica_set is None:
        return False
    is_ending = replica_set.successor is not None and replica_set.is_master(report.replica_id, report.run)
    return (report.known is None or replica_set.number != report.known.number) and not is_ending


def repaired(replica_set: ReplicaSet | None, report: ReplicaReport) -> ReplicaSet | None:
    """Return the record, repaired if a replica knows a later one; the same record otherwise.

    An authority sends only what it has recorded. So if a replica knows more, the record was lost, or replaced by an old
    copy. The later record becomes valid again, so that no replica is elected that was not in sync.

    If both records have the same leadership, the master continues. Otherwise leases may be held that this authority
    does not know, so there is no master until they have all ended, and the next election begins a new term.
    """
    check_terms(replica_set, report)
    told = report.known
    if told is None:
        return replica_set
    if replica_set is not None:
        if told.log_id and replica_set.log_id and told.log_id != replica_set.log_id:
            return replica_set  # another replica set has this name now
        if told.number < replica_set.number:
            return replica_set
        # Both derive from the same older record. The master acts by the one that it received.
        differs = (told.leadership, told.in_sync) != (replica_set.leadership, replica_set.in_sync)
        if told.number == replica_set.number and not (differs and told.is_master(report.replica_id, report.run)):
            return replica_set
        if told.leadership == replica_set.leadership:
            return replace(told, version=told.version + 1)
    return replace(told, master_run=0, version=told.version + 1)


def what_was_repaired(replica_set: ReplicaSet, report: ReplicaReport) -> str:
    """Return a sentence for the log about a record that `repaired` has made."""
    then = "its master continues" if replica_set.master_run else "there is no master for the time of a lease"
    return (
        f"the record of {replica_set} was lost, or replaced by an old copy: it was restored from replica "
        f"{report.replica_id}, and {then}; decisions that no reporting replica knows are lost"
    )


def change_in_sync(replica_set: ReplicaSet, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
    """Return the record with another in-sync set; the same record if this change was already made after `known`."""
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
    """Raise `InvalidArgument` if a value of a record is out of range, or contradicts another one."""
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
    """Raise `InvalidArgument` if an in-sync set has too many members, or an invalid replica id."""
    if len(in_sync) > MAX_REPLICAS:
        raise InvalidArgument(f"{what} has {len(in_sync)} replicas in sync, the limit is {MAX_REPLICAS}")
    for replica_id in in_sync:
        _check_range(what, "replica_id", replica_id)


def check_terms(record: ReplicaSet | None, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` if a report claims a term that no controller can have given out."""
    given = record.term if record is not None else 0
    claimed = max(report.last_term, report.known.term if report.known is not None else 0)
    if claimed > given + MAX_TERM_GAP:
        raise InvalidArgument(
            f"replica {report.replica_id} of {report.broker_name} claims term {claimed}, but its controller has given "
            f"{given}, and a gap above {MAX_TERM_GAP} is impossible: its data directory is damaged, or the report is "
            "forged"
        )


def check_place(record: ReplicaSet, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` if the record is full and does not contain the replica."""
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
