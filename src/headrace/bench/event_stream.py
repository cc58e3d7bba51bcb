"""Server-sent events out of the pieces of a body (WHATWG HTML, 9.2), as far as streams of tokens use them."""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 16 << 20


class EventSplitter:
    """Gives the data of each event as soon as it is whole. *Mutable.* Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Data of the events that end in this piece. Raises ``ValueError`` for one that does not end."""
        data = self._pending + piece if self._pending else piece
        if b"\r" in data:
            if data.endswith(b"\r"):  # half a line end, maybe
                self._pending = data
                return
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._pending = data.split(b"\n\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES >> 20} MiB")
        for event in events:
            if content := _data_of(event):
                yield content


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data:") and b"\n" not in event:  # nearly all of them
        return event[5:].strip()
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
