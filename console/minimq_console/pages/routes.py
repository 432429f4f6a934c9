"""The route of a topic, as clients see it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from minimq_common.model import permission_name
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of


class RouteRow(msgspec.Struct, frozen=True):
    """One broker in the route of a topic."""

    broker: str
    cluster: str
    #: HOST:PORT of its master; None while there is none.
    master: str | None
    slaves: dict[str, str]
    #: How many queues consumers see; None if it is away, as the following two.
    read_queues: int | None
    write_queues: int | None
    #: What clients may do.
    permission: str | None
    #: When it went; None if it is there.
    away_since: datetime | None


class RoutesPage(PageData, frozen=True, kw_only=True):
    """Topics to choose from, and the route of the one that is chosen."""

    search: str
    #: The chosen one; empty for none.
    topic: str
    part: TablePart
    topics: tuple[str, ...]
    route: tuple[RouteRow, ...]


def gather(visit: Visit) -> RoutesPage:
    """Return the topics that are searched for, and the route of the chosen one, asked anew."""
    parameters, admin = visit.parameters, visit.observer.admin
    search, topic, bounds = parameters.text("search"), parameters.text("topic", most=127), parameters.rows()
    asked = visit.ask("the route", lambda: admin.route(topic)) if topic else None
    names = visit.ask("the topics", admin.list_topics).required()
    shown, part = part_of([name for name in names if search.lower() in name.lower()], bounds)
    rows: list[RouteRow] = []
    if asked is not None:
        route = asked.required()
        for data in route.queues:
            broker = route.brokers[data.broker_name]
            slaves = {str(number): address for number, address in broker.addresses.items() if number}
            rows.append(
                RouteRow(
                    data.broker_name,
                    broker.cluster,
                    broker.master,
                    slaves,
                    data.read_queues,
                    data.write_queues,
                    permission_name(data.permission),
                    None,
                )
            )
        rows += [
            RouteRow(each.broker_name, each.cluster, None, {}, None, None, None, each.since) for each in route.away
        ]
    return RoutesPage(
        search=search, topic=topic, part=part, topics=tuple(shown), route=tuple(rows), missing=visit.missing
    )


PAGE = Page(path="/routes", template="routes.html", gather=gather, title="Routes", label="Routes")
