"""All pages of the console, in the order of its navigation."""

from __future__ import annotations

from minimq_console.page import Page
from minimq_console.pages import (
    cluster,
    conflicts,
    dead_letters,
    delayed,
    group,
    groups,
    message,
    routes,
    tail,
    topic,
    topics,
    transactions,
    users,
)

PAGES: tuple[Page, ...] = (
    cluster.PAGE,
    topics.PAGE,
    groups.PAGE,
    dead_letters.PAGE,
    delayed.PAGE,
    transactions.PAGE,
    users.PAGE,
    routes.PAGE,
    conflicts.PAGE,
    topic.PAGE,
    tail.PAGE,
    message.PAGE,
    group.PAGE,
    dead_letters.GROUP_PAGE,
    delayed.TOPIC_PAGE,
)
