"""Types of the fixtures that start something."""

from __future__ import annotations

from collections.abc import Callable

from minimq_nameserver.server import NameServer
from support.fake_broker import FakeBroker
from support.open_routes import OpenRoutes

#: Takes `listen`, `grace_s`, `expire_after_s` and `remember_offline_s`.
StartNameServer = Callable[..., NameServer]
#: Takes addresses of name servers, and `topics`, `name` and `broker_id`.
StartBroker = Callable[..., FakeBroker]
#: Takes addresses of name servers, and `timeout_s` and `poll_s`.
OpenCache = Callable[..., OpenRoutes]
