"""An OpenAI-compatible server in this process, and an event loop whose clock jumps over every wait.

The server answers requests that come together as the simulator says a server with known factors would: each token at
its simulated time of the loop's clock. Sockets are real (127.0.0.1), waiting is not.
"""

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from calibration_servers import SERVER, answered, table_of

GATHER_S = 0.0005
"""[s] requests this close together are one group."""
MODELS = {"object": "list", "data": [{"id": "probe-model", "object": "model", "max_model_len": 8192}]}


class _Selector(selectors.DefaultSelector):
    """Looks at the sockets; where nothing is there to do, time passes instead."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0.0002 if timeout is None or timeout > 0 else 0)
        if not ready and timeout is not None:
            self.passed += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is that of the waits so far."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.passed


def run_virtually(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine on a VirtualLoop."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.run_until_complete(FakeServer().stop())
        loop.close()


@dataclass
class FakeServer:
    """`cpu`, `gpu`: its factors. `status`, `location`, `models`: what it answers instead. `seen`: what came."""

    cpu: float = 1.0
    gpu: float = 1.0
    status: str = "200 OK"
    location: str = ""
    models: dict[str, Any] = field(default_factory=lambda: MODELS)
    seen: list[dict[str, Any]] = field(default_factory=list)
    _waiting: list[tuple[dict[str, Any], asyncio.Future[tuple[float, float]]]] = field(default_factory=list)

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """End the connections that are still open."""
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                lengths = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")]
                body = await reader.readexactly(sum(lengths))
                if self.location or self.status != "200 OK":
                    self._answer(writer, b"no", f"Location: {self.location}\r\n" if self.location else "")
                elif lines[0].startswith("GET /v1/models "):
                    self._answer(writer, json.dumps(self.models).encode())
                else:
                    await self._complete(json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, body: bytes, more: str = "") -> None:
        writer.write(f"HTTP/1.1 {self.status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _complete(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.seen.append(request)
        came = asyncio.get_running_loop().time()
        first, last = await self._times(request)
        loop = asyncio.get_running_loop()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        output = request["max_tokens"]
        for at in np.linspace(came + first, came + last, output) if output > 1 else [came + first]:
            await asyncio.sleep(max(0.0, at - loop.time()))
            self._event(writer, {"choices": [{"index": 0, "text": "x"}]})
        self._event(writer, {"choices": [], "usage": {"prompt_tokens": len(request["prompt"]),
                                                      "completion_tokens": output}})
        self._chunk(writer, b"data: [DONE]\n\n")
        self._chunk(writer, b"")
        await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        self._chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def _times(self, request: dict[str, Any]) -> tuple[float, float]:
        """[s] from its coming to first and last token, once the group is complete."""
        future: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(GATHER_S, self._simulate)
        return await future

    def _simulate(self) -> None:
        group, self._waiting = self._waiting, []
        sizes = [(len(request["prompt"]), request["max_tokens"]) for request, _ in group]
        prompt, output = (np.array(column) for column in zip(*sizes, strict=True))
        done = answered(table_of(np.zeros(len(group)), prompt, output), self.cpu, self.gpu, server=SERVER)
        for place, request_id in enumerate(done.ids):
            group[request_id][1].set_result((float(done.first_s[place]), float(done.last_s[place])))
