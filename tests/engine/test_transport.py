from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import stat
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.engine.frame_socket import MAX_FRAME_BYTES, FrameError, FrameSocket, frame
from headrace.engine.messages import Hello, encode
from headrace.engine.transport import Rendezvous, read_frame
from tests.engine.conditions import PATIENCE_S


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_frames_come_out_as_they_went_in() -> None:
    async def main() -> None:
        bodies = [b"", b"x", b"y" * 300_000]
        reader = reader_of(b"".join(map(frame, bodies)))
        assert [await read_frame(reader) for _ in range(4)] == [*bodies, None]

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x05"])
def test_a_stream_that_ends_inside_a_frame_is_an_error(data: bytes) -> None:
    async def main() -> None:
        with pytest.raises(FrameError, match="inside a frame"):
            await read_frame(reader_of(data))

    asyncio.run(main())
    left, right = socket.socketpair()
    left.sendall(data)
    left.close()
    receiver = FrameSocket(right)
    with pytest.raises(FrameError, match="inside a frame"):
        receiver.receive()
    receiver.close()


def test_a_length_above_the_limit_is_refused_before_its_bytes_are_awaited() -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"\xff\xff\xff\xff")
        with pytest.raises(FrameError, match="exceeds the limit"):
            await read_frame(reader)

    asyncio.run(main())
    left, right = socket.socketpair()
    left.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    receiver = FrameSocket(right)
    with pytest.raises(FrameError, match="exceeds the limit"):
        receiver.receive()
    left.close()
    receiver.close()


def test_the_meeting_place_is_private_and_vanishes_once_the_peer_is_in() -> None:
    async def main() -> None:
        rendezvous = await Rendezvous.open()
        folder = rendezvous.path.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(rendezvous.path.stat().st_mode) == 0o600
        _, peer = await asyncio.open_unix_connection(rendezvous.path)
        peer.write(frame(encode(Hello(rendezvous.token))))
        _, writer = await asyncio.wait_for(rendezvous.accept(), PATIENCE_S)
        assert not folder.exists()
        await hang_up(writer, peer)

    asyncio.run(main())


def test_tokens_differ_between_starts() -> None:
    async def main() -> None:
        first, second = await Rendezvous.open(), await Rendezvous.open()
        assert first.token != second.token
        assert first.path != second.path
        first.close()
        second.close()

    asyncio.run(main())


def test_strangers_are_hung_up_on_and_the_right_peer_still_gets_in() -> None:
    async def main() -> None:
        rendezvous = await Rendezvous.open()
        chance = random.Random(7)
        greetings = [
            frame(encode(Hello("0" * 64))),
            frame(encode(Hello(rendezvous.token[:-1]))),
            frame(encode(Hello(""))),
            frame(b"\xc1" * 40),
            frame(chance.randbytes(2000)),
            b"\xff\xff\xff\xff",
            b"\x00\x00",
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
            *(frame(chance.randbytes(chance.randrange(200))) for _ in range(300)),
        ]
        for greeting in greetings:
            reader, stranger = await asyncio.open_unix_connection(rendezvous.path)
            stranger.write(greeting)
            if len(greeting) < 4:
                stranger.write_eof()
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            await hang_up(stranger)
        accepting = asyncio.create_task(rendezvous.accept())
        _, peer = await asyncio.open_unix_connection(rendezvous.path)
        peer.write(frame(encode(Hello(rendezvous.token))))
        _, writer = await asyncio.wait_for(accepting, PATIENCE_S)
        await hang_up(writer, peer)

    asyncio.run(main())


def test_many_silent_strangers_cannot_keep_more_than_a_few_connections() -> None:
    async def main() -> None:
        rendezvous = await Rendezvous.open()
        connections = [await asyncio.open_unix_connection(rendezvous.path) for _ in range(40)]
        hung_up = 0
        for reader, _ in connections[16:]:
            hung_up += await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert hung_up == 24
        rendezvous.close()
        await hang_up(*(writer for _, writer in connections))

    asyncio.run(main())


def test_a_temporary_folder_too_deep_for_a_socket_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    async def main() -> None:
        with pytest.raises(ConfigError, match="TMPDIR"):
            await Rendezvous.open()
        assert list(deep.iterdir()) == []

    asyncio.run(main())
