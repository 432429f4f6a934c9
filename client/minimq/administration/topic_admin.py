"""The part of `Admin` that concerns topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from minimq.administration.compaction import Compaction, check_compaction, compaction_to_wire
from minimq.administration.failures import raise_failures
from minimq.administration.resize import Resize
from minimq.administration.topic_describer import TopicDescriber
from minimq.administration.topic_settings import (
    check_queue_counts,
    check_retention_bytes,
    retention_to_wire,
    say_exists,
    topic_settings,
)
from minimq.arguments import check_permission
from minimq.routes.away import check_route
from minimq_common.errors import (
    InvalidArgument,
    MiniMQError,
    NotDrained,
    TopicExists,
    TopicNotFound,
    TopicUnavailable,
)
from minimq_common.model import AwayBroker, Permission, TopicRoute
from minimq_common.names import check_group, check_topic
from minimq_proto.v1 import broker_pb2

#: The fields of a request that change something.
_CHANGED: Final = ("read_queues", "write_queues", "permission", "retention_ms", "retention_bytes")


class _Versioned(Protocol):
    """The answer of a broker to a call that may have changed something."""

    @property
    def data_version(self) -> int: ...


class _WithTopic(Protocol):
    """The answer of a broker that describes a topic."""

    @property
    def topic(self) -> broker_pb2.Topic: ...


class TopicAdmin(TopicDescriber):
    """Creates, changes, describes and deletes topics; users have it as `Admin`."""

    def create_topic(  # noqa: PLR0913 - by name, as the flags of the command
        self,
        name: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission = Permission.READ_WRITE,
        fifo: bool = False,
        compaction: Compaction | None = None,
        retention_s: float = 0.0,
        retention_bytes: int = 0,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        if_not_exists: bool = False,
        same_settings: bool = False,
        wait: bool = True,
    ) -> bool:
        """Create a topic on every master, or on some of them.

        Brokers on which the topic is already, with the same settings, are left as they are: so a creation that failed
        half-way is completed by repeating it, and a broker that joined later gets the topic in the same way.
        With `brokers` the others are not looked at, so that they may have other counts, or get the topic later.
        A broker that is away does not get the topic: `away_brokers` returns those; repeat the call when they are back.

        Args:
            name: 1 to 127 letters, digits and the characters _ - . such as "shop.orders.v1".
            queues: how many on each broker, 1 to 1024.
            read_queues: how many of them consumers see, when it is not all.
            write_queues: how many of them producers see, when it is not all.
            permission: what may be done with it.
            fifo: each message has a message group, whose messages are taken one by one in order: see
                `Message.message_group`. It cannot be changed later.
            compaction: keep the latest message of each key, and remove older ones; by the rules that are given. It
                cannot be changed later, nor can the number of queues.
            retention_s: seconds for which its messages are kept, shorter or longer than others of the broker; 0: as
                long as those.
            retention_bytes: bytes that it may have on each broker before its oldest messages go; 0: no limit of its
                own.
            cluster: name of the cluster, when the name servers know several.
            brokers: names of the brokers that shall carry it; all when empty.
            if_not_exists: succeed when the topic exists, whatever its settings, which stay as they are.
            same_settings: with `if_not_exists`: raise `TopicExists` if a broker has the topic with other settings.
            wait: return only when every name server that answers shows the topic on all these brokers, so that a
                producer which starts right now finds it.

        Returns:
            Whether anything was created: False when all masters have it, or one of them with other settings.

        Raises:
            TopicExists: it is on all masters already, or with other settings on one of them. Nothing was changed.
                Not raised with `if_not_exists`, unless `same_settings` is given too.
            InvalidArgument: a name or number breaks a rule, or there is no such cluster or broker.
            Unavailable: no name server or no master is reached.
            DeadlineExceeded: a name server did not show the topic in time. It has been created.
            MiniMQError: a master failed; the text says which, and the class is that of one that will last.
        """
        check_topic(name)
        check_queue_counts(queues=queues, read_queues=read_queues, write_queues=write_queues)
        check_permission(permission)
        check_compaction(compaction)
        if not permission:
            raise InvalidArgument("a new topic must be readable or writable: permission is none")
        if same_settings and not if_not_exists:
            raise InvalidArgument("same_settings needs if_not_exists: without it, an existing topic is always refused")
        wanted = broker_pb2.Topic(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=int(permission),
            fifo=fifo,
            retention_ms=retention_to_wire(retention_s),
            retention_bytes=check_retention_bytes(retention_bytes),
        )
        masters = self._masters.find_all(cluster, brokers)
        if compaction is not None:
            wanted.compaction.CopyFrom(compaction_to_wire(compaction, wanted.write_queues * len(masters)))
        request = broker_pb2.CreateTopicRequest(topic=wanted, if_not_exists=True)
        present = self._masters.describe(name, masters)
        absent = {broker: address for broker, address in masters.items() if broker not in present}
        others = _unlike(wanted, present)
        if others and if_not_exists and not same_settings:
            absent = {}
        elif others or not (absent or if_not_exists):
            raise TopicExists(say_exists(name, others or _unlike(None, present)))
        if absent and compaction is not None and not brokers:
            remedy = "a compacted topic has all of its queues from the beginning: name brokers to leave others out"
            self._masters.refuse_if_away(f"topic {name} was not created", remedy, cluster=cluster)
        answers, failures = self._masters.call_all(absent, lambda stub: stub.CreateTopic, request)
        raise_failures(f"topic {name} was not created", failures, masters, "repeat the call to complete it")
        raced = _unlike(wanted, answers)
        if raced and (same_settings or not if_not_exists):
            raise TopicExists(say_exists(name, raced))
        if wait:
            self._masters.wait_until_shown(_versions(present) | _versions(answers))
        return bool(absent)

    def update_topic(  # noqa: PLR0913 - by name, as the flags of the command
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission | None = None,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        ignore_groups: Sequence[str] = (),
        force: bool = False,
        wait: bool = True,
    ) -> tuple[AwayBroker, ...]:
        """Change a topic on every master that carries it, or on some of them; what is not given stays as it is.

        Counts are set in one step: `resize_topic` makes the steps of a whole change in their order. What a smaller
        `read_queues` hides is still stored; a larger one brings it back to sight.

        Args:
            name: of the topic.
            read_queues: how many queues on each broker consumers see, 1 to 1024.
            write_queues: how many queues on each broker producers see, 1 to 1024.
            permission: what may be done with the topic.
            retention_s: seconds for which its messages are kept; 0: as long as others of the broker.
            retention_bytes: bytes that it may have on each broker; 0: no limit of its own.
            cluster: name of the cluster, when the name servers know several.
            brokers: names of those on which it is changed; all that carry it when empty.
            ignore_groups: consumer groups that need not have read the queues that are hidden.
            force: also when nobody would read what is sent to some queues, or queues with unread messages are hidden.
            wait: return only when every name server that answers shows the change.

        Returns:
            The brokers that carry the topic and are away, on which it was not changed; none when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            TopicUnavailable: all brokers that carry it are away.
            NotDrained: a group has not read what would be hidden; the text names groups and queues.
            InvalidArgument: there is nothing to change, a number breaks a rule, or there is no such cluster or broker.
            MiniMQError: as for `create_topic`.
        """
        check_topic(name)
        check_queue_counts(read_queues=read_queues, write_queues=write_queues)
        if permission is not None:
            check_permission(permission)
        request = broker_pb2.UpdateTopicRequest(
            topic=name,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=None if permission is None else int(permission),
            retention_ms=None if retention_s is None else retention_to_wire(retention_s),
            retention_bytes=None if retention_bytes is None else check_retention_bytes(retention_bytes),
            force=force,
            ignored_groups=[check_group(group) for group in ignore_groups],
        )
        if not any(request.HasField(field) for field in _CHANGED):
            raise InvalidArgument("nothing to change: give read_queues, write_queues, permission or a retention")

        carriers = self._carriers(name, cluster, brokers)
        answers, failures = self._masters.call_all(carriers, lambda stub: stub.UpdateTopic, request)
        failures = {broker: _with_remedy(error) for broker, error in failures.items()}
        remedy = "the others were changed; repeat the call to complete it"
        raise_failures(f"topic {name} was not changed", failures, carriers, remedy)
        versions = _versions(answers)
        if wait:
            self._masters.wait_until_shown(versions)
        return self._left_out(name, cluster, brokers, versions)

    def resize_topic(
        self,
        name: str,
        queues: int,
        *,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        ignore_groups: Sequence[str] = (),
        force: bool = False,
        timeout_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
    ) -> tuple[AwayBroker, ...]:
        """Give a topic another number of queues on every master that carries it, or on some of them, unharmed.

        More queues are shown to consumers first, then to producers. Fewer are taken from producers first, and from
        consumers once every group has read them. What is stored in them stays, but groups that begin later, and
        replays, do not see it: `TopicDescription.hidden_by` tells how much that is. Each broker is led there from the
        counts it has, in steps that are durable: when this fails half-way, calling it again goes on.

        Args:
            name: of the topic.
            queues: how many on each broker, for producers and consumers, 1 to 1024.
            cluster: name of the cluster, when the name servers know several.
            brokers: names of those on which it is resized; all that carry it when empty.
            ignore_groups: consumer groups that are not waited for.
            force: wait for no group; what was not read there is still stored, and more queues bring it back to sight.
            timeout_s: seconds for all of it, most of which groups may need to read.
            progress: told in one sentence what is done or waited for, each time that changes; in the calling thread.

        Returns:
            The brokers that carry the topic and are away, on which it was not resized; none when `brokers` is given.

        Raises:
            NotDrained: a group had not read the queues in time. The text names groups and queues, the counts as they
                are now, and how to go on or back.
            TopicNotFound: no master carries it, or not all of `brokers` do.
            TopicUnavailable: all brokers that carry it are away.
            InvalidArgument: a number breaks a rule, or there is no such cluster or broker.
            MiniMQError: a master could not be changed in time; the text says which and why.
        """
        check_topic(name)
        check_queue_counts(queues=queues)
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be above 0")
        carriers = self._carriers(name, cluster, brokers, queues)
        ignored = tuple(check_group(group) for group in ignore_groups)
        Resize(self._masters, name, queues, carriers, ignored, force=force, progress=progress).run(timeout_s)
        return self._left_out(name, cluster, brokers, carriers)

    def delete_topic(
        self,
        name: str,
        *,
        cluster: str | None = None,
        brokers: Sequence[str] = (),
        if_exists: bool = False,
        force: bool = False,
        wait: bool = True,
    ) -> tuple[AwayBroker, ...]:
        """Delete a topic with all its messages on every master that carries it, or on some of them.

        It is refused while a broker that carries the topic is away, which would bring it back when it starts.

        Args:
            name: of the topic.
            cluster: name of the cluster, when the name servers know several.
            brokers: names of those on which it is deleted; all that carry it when empty.
            if_exists: succeed when there is no such topic.
            force: delete it on the others while a broker that carries it is away.
            wait: return only when no name server that answers shows it on these brokers any more.

        Returns:
            The brokers that are away and bring the topic back: delete it again then. None when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            Unavailable: a broker that carries it is away; the text says since when.
            MiniMQError: as for `create_topic`.
        """
        check_topic(name)
        request = broker_pb2.DeleteTopicRequest(topic=name)
        if not force and not brokers:
            remedy = "delete it on the others with force (--force) or by name (--broker)"
            self._masters.refuse_if_away(f"topic {name} was not deleted", remedy, cluster=cluster, topic=name)
        try:
            carriers = self._carriers(name, cluster, brokers)
        except (TopicNotFound, TopicUnavailable):
            if not if_exists:
                where = f" on {', '.join(brokers)}" if brokers else ""
                raise TopicNotFound(
                    f"there is no topic {name}{where} to delete: `minimq topic list` shows the topics; one on a "
                    "broker that is away can be deleted when the broker is back"
                ) from None
            carriers = {}
        answers, failures = self._masters.call_all(carriers, lambda stub: stub.DeleteTopic, request)
        failures = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
        raise_failures(f"topic {name} was not deleted", failures, carriers, "repeat the call to complete it")
        versions = _versions(answers)
        if wait and versions:
            self._masters.wait_until_shown(versions, gone=True)
        return self._left_out(name, cluster, brokers, versions)

    def _carriers(
        self, topic: str, cluster: str | None, brokers: Sequence[str], queues: int | None = None
    ) -> dict[str, str]:
        masters = self._masters.find_all(cluster, brokers)
        present = self._masters.describe(topic, masters)
        if not present and not brokers:
            check_route(TopicRoute(topic, (), {}, self._masters.away(cluster, topic)))
            raise TopicNotFound.nowhere(topic)
        absent = [broker for broker in brokers if broker not in present]
        if absent:
            count = "" if queues is None else f" --queues {queues}"
            create = " --broker ".join((f"minimq topic create {topic}{count}", *absent))
            raise TopicNotFound(f"topic {topic} is not on {', '.join(absent)}: create it there with `{create}`")
        return {broker: masters[broker] for broker in present}

    def _left_out(
        self, topic: str, cluster: str | None, brokers: Sequence[str], done: Collection[str]
    ) -> tuple[AwayBroker, ...]:
        away = () if brokers else self._masters.away(cluster, topic)
        return tuple(each for each in away if each.broker_name not in done)


def _versions(answers: Mapping[str, _Versioned]) -> dict[str, int]:
    return {broker: answer.data_version for broker, answer in answers.items()}


def _unlike(wanted: broker_pb2.Topic | None, answers: Mapping[str, _WithTopic]) -> dict[str, broker_pb2.Topic]:
    settings = None if wanted is None else topic_settings(wanted)
    return {broker: each.topic for broker, each in answers.items() if topic_settings(each.topic) != settings}


def _with_remedy(error: MiniMQError) -> MiniMQError:
    if not isinstance(error, NotDrained):
        return error
    return error.with_message(
        f"{error.message}: lower the write queues first and let every group read the rest; --ignore-group leaves a "
        "dead one out, --force hides the messages all the same"
    )
