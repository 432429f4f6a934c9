"""The log format of handlers."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_ID_WIDTH = 40


class MinimqLoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker, with columns for topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width, self._group_width = 4, 0
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, which the first call creates."""
        if (logger := self._get_logger_ref()) is None:
            group = f"%(group)-{self._group_width}s | " if self._group_width else ""
            logger = get_broker_logger(
                name="minimq",
                default_context={"topic": "", "group": "", "place": ""},
                message_id_ln=_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - {group}%(topic)-{self._topic_width}s | %(place)-16s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_minimq_logger_state = partial(make_logger_state, default_storage_cls=MinimqLoggerStorage)
