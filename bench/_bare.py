"""Bare sockets, for the floors of `bench.physics`.

    python -m bench._bare worker URL         pops what is pushed to `jobs`, and pushes an answer
    python -m bench._bare server URL PORT    pushes what is posted there, and answers 200

URL is that of Redis. Nothing is checked, kept or tried again.
"""

import asyncio
import sys
from typing import Self
from urllib.parse import urlsplit


class Line:
    """A connection to Redis, for commands whose reply is a line, a string or a list."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def opened(cls, url: str) -> Self:
        server = urlsplit(url)
        line = cls(*await asyncio.open_connection(server.hostname, server.port))
        if server.password:
            await line.ask("AUTH", server.username or "default", server.password)
        return line

    async def ask(self, *words: str) -> str:
        """The reply's last line."""
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._writer.write(f"*{len(words)}\r\n{parts}".encode())
        line = await self._line()
        if line.startswith("-"):
            raise RuntimeError(line)
        for _ in range(2 * int(line[1:]) if line[0] == "*" else line[0] == "$"):
            line = await self._line()
        return line

    async def _line(self) -> str:
        return (await self._reader.readuntil(b"\r\n"))[:-2].decode()

    def close(self) -> None:
        self._writer.close()


async def work(url: str) -> None:
    line = await Line.opened(url)
    while True:
        answer = await line.ask("BLPOP", "jobs", "0")
        await line.ask("RPUSH", "answers", answer)


async def serve(url: str, port: int) -> None:
    line = await Line.opened(url)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            body = (await reader.readexactly(length)).decode()
            await line.ask("RPUSH", "items", body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    role, url, *port = sys.argv[1:]
    asyncio.run(serve(url, int(port[0])) if role == "server" else work(url))
