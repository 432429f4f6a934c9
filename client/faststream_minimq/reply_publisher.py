"""The publisher of replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.publisher.fake import FakePublisher

from faststream_minimq.parser import INBOX
from faststream_minimq.response import MinimqPublishCommand

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream.message import StreamMessage
    from faststream.response.response import PublishCommand


class ReplyPublisher(FakePublisher):
    """Publishes the answer of a handler to the inbox of a request, or to the topic that its message names.

    Args:
        producer: sends it.
        message: the message that is answered.
    """

    def __init__(self, producer: ProducerProto[Any], message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> MinimqPublishCommand:
        """Return the command, addressed."""
        command = MinimqPublishCommand.from_cmd(super().patch_command(cmd))
        if INBOX in self._message.raw_message.properties:
            command.request = self._message.raw_message
        else:
            command.destination = self._message.reply_to
        return command
