"""A loop's ear: its own connection, by which it asks for the notices and reads them itself.

Whether it is to ask, `listening.py` says. What goes wrong here its direct line sees to.
"""

import math
from typing import TYPE_CHECKING

from limiter.inbox import SILENCE, read_streams
from limiter.loop_wire import LoopWire

if TYPE_CHECKING:
    from worker.direct_line import DirectLine
    from worker.listening import Listening


class Ear:
    """Of one event loop."""

    def __init__(self, listening: "Listening", line: "DirectLine", wire: LoopWire) -> None:
        self.open = True
        self.answer_due = math.inf  # by the engine's clock, once it has asked
        self._listening, self._line, self._wire = listening, line, wire

    def listen(self) -> None:
        self._wire.watch(lambda: self._line.do(self._hear))

    def ask(self) -> None:
        """For the next notices, if that is its to do and not done yet."""
        if not self.open or self.answer_due < math.inf:
            return
        if question := self._listening.question_of(self):
            self.answer_due = self._listening.clock() + SILENCE
            self._wire.send([question])

    def wake(self) -> None:
        """From any thread: have it ask."""
        self._line.on_loop(lambda: self._line.do(self.ask))

    def _hear(self) -> None:
        for reply in self._wire.received():
            if isinstance(reply, Exception):
                raise ConnectionError(str(reply))
            self.answer_due = math.inf
            for _, last, notices in read_streams(reply):
                self._listening.heard(self, last, notices)
        self.ask()

    def hang_up(self) -> None:
        self.open = False
        self._wire.hang_up()
