"""A short, bounded load on a server the user names: lone prompts of a few sizes, one lone answer, a few batches.

OpenAI-compatible completions, streamed, from the one address given: no redirect is followed, no proxy and no other
host is used. Prompts are random token ids, so that no prefix cache knows them; each part sends one group more in front,
which is not counted (first-time kernel selection). Times are the client's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from calibration.served import Served
from simulator.config import shown
from simulator.errors import CalibrationError, ConfigError

_CONNECT_S: Final = 10.0
_LONGEST_LINE: Final = 2**20
_APART_S: Final = 1000.0
_FIRST_ID: Final = 1000
"""[token id] below are bytes and special tokens of common vocabularies."""


class Bounds(NamedTuple):
    """What a probe may take: tokens in and out together, [s]."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Part:
    """`groups` of `width` requests of one size, a group sent when the one before has ended."""

    width: int
    prompt: int
    output: int
    groups: int

    @property
    def tokens(self) -> int:
        """Prompt and output tokens, the uncounted group included."""
        return self.width * (self.prompt + self.output) * (self.groups + 1)

    def __str__(self) -> str:
        return f"{self.width} at a time, {self.prompt:,} tokens in, {self.output} out"


_PARTS: Final = (
    Part(1, 64, 2, 3), Part(1, 256, 2, 3), Part(1, 1024, 2, 3), Part(1, 4096, 2, 3), Part(1, 128, 64, 2),
    Part(8, 128, 64, 2), Part(32, 128, 64, 2),
)


def plan(max_num_seqs: int, longest: int, most_tokens: int) -> list[Part]:
    """What is sent to a server of these limits, the largest parts left out until `most_tokens` suffice.

    Raises ConfigError where not even two parts are left.
    """
    parts = [part for part in _PARTS if part.width <= max_num_seqs and part.prompt + part.output <= longest]
    while parts and sum(part.tokens for part in parts) > most_tokens:
        parts.remove(max(parts, key=lambda part: part.tokens))
    if len(parts) < 2:
        raise ConfigError(f"--max-tokens {most_tokens:,} with requests of up to {longest:,} tokens leaves too little "
                          "to send; accepted: 2,000 or more")
    return parts


def checked_address(url: str) -> str:
    """`http://host:port` (or https) with the path before /v1. Raises ConfigError for anything else."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {shown(url)}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--url must be http://HOST:PORT of your own server, got {shown(url)}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


class Probed(NamedTuple):
    """What was measured: one run in which every group finds an idle server, and the part of each of its requests."""

    served: Served
    parts: list[str]


def _joined(tables: list[pd.DataFrame], address: str) -> Probed:
    """One table of all groups, each _APART_S after the one before: none meets another."""
    table = pd.concat(tables, ignore_index=True)
    group = table.groupby(["part", "group"], sort=False).ngroup().to_numpy()
    lengths = table[["prompt_tokens", "output_tokens"]].astype("int64")
    more = np.maximum(lengths.output_tokens.to_numpy() - 1, 1)
    tpot = (table.e2e_s.to_numpy() - table.ttft_s.to_numpy()) / more
    rows = pd.concat([lengths, table[["ttft_s", "e2e_s"]]], axis=1)
    rows = rows.assign(id=np.arange(len(table)), arrival_s=group * _APART_S, tpot_s=tpot)
    return Probed(Served(Path(address), "open", 0, rows), table.part.tolist())


class Probe:
    """One session of requests to one server."""

    def __init__(self, address: str, most_seconds: float, vocab: int, served_model: str = "") -> None:
        try:
            import httpx
        except ImportError as error:
            raise CalibrationError("a probe needs httpx: pip install 'servecast[calibrate]', or pip install -e "
                                   "'.[calibrate]' in a copy of the source") from error
        self.address, self.most_seconds, self.served_model = address, most_seconds, served_model
        self._httpx, self._draw = httpx, np.random.default_rng()
        self._ids = (min(_FIRST_ID, vocab // 2), max(vocab * 3 // 4, 2))

    async def run(self, parts: list[Part], longest: int) -> "Probed":
        """The parts that were done in time. Raises CalibrationError where the server does not answer
        as it should, or none was done."""
        timeout = self._httpx.Timeout(self.most_seconds, connect=_CONNECT_S)
        limits = self._httpx.Limits(max_connections=max(part.width for part in parts))
        done: list[pd.DataFrame] = []
        async with self._httpx.AsyncClient(base_url=self.address, timeout=timeout, limits=limits, trust_env=False,
                                           follow_redirects=False) as client:
            try:
                async with asyncio.timeout(self.most_seconds):
                    name, most = await self._model(client)
                    for part in parts:
                        if part.prompt + part.output <= min(longest, most or longest):
                            done.append(await self._part(client, name, part))
            except TimeoutError:
                pass
            except self._httpx.HTTPError as error:
                raise CalibrationError(f"{self.address}: {type(error).__name__}: {error}") from error
        if len(done) < 2:
            raise CalibrationError(f"{self.address}: less than two parts were answered within {self.most_seconds:g} s; "
                                   "accepted: a higher --max-seconds, or a server with nothing else to do")
        return _joined(done, self.address)

    async def _model(self, client: Any) -> tuple[str, int | None]:
        """(name, longest request) of the model served."""
        answer = await client.get("/v1/models")
        self._check(answer, "GET /v1/models", answer.text)
        try:
            cards = answer.json()["data"]
            names = [str(card["id"]) for card in cards]
            name = self.served_model or names[0]
            most = next((card.get("max_model_len") for card in cards if card["id"] == name), None)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CalibrationError(f"{self.address}: GET /v1/models is no list of models: {error!r}") from error
        return name, most if isinstance(most, int) else None

    def _check(self, answer: Any, what: str, body: str) -> None:
        if answer.is_redirect:
            target = shown(answer.headers.get("location", ""))
            raise CalibrationError(f"{self.address}: {what} is answered by a redirect to {target}, which is not "
                                   "followed; accepted: the server's own address")
        if answer.status_code != 200:
            raise CalibrationError(f"{self.address}: {what} is answered by status {answer.status_code}: {shown(body)}")

    async def _part(self, client: Any, name: str, part: Part) -> pd.DataFrame:
        """The counted groups: one row a request."""
        tables = []
        for group in range(part.groups + 1):
            answers = await asyncio.gather(*(self._request(client, name, part) for _ in range(part.width)))
            if group:
                table = pd.DataFrame(answers, columns=["prompt_tokens", "output_tokens", "ttft_s", "e2e_s"])
                tables.append(table.assign(part=str(part), group=group))
        return pd.concat(tables, ignore_index=True)

    async def _request(self, client: Any, name: str, part: Part) -> tuple[float, ...]:
        """(prompt and output tokens, TTFT, E2E), times in seconds of the loop's clock."""
        ids = self._draw.integers(*self._ids, part.prompt).tolist()
        body = {"model": name, "prompt": ids, "max_tokens": part.output, "min_tokens": part.output, "ignore_eos": True,
                "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        clock = asyncio.get_running_loop().time
        sent = clock()
        first = last = 0.0
        events, usage = 0, dict[str, Any]()
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                self._check(answer, "POST /v1/completions", (await answer.aread()).decode(errors="replace"))
            async for event in self._events(answer):
                now = clock()
                usage = event.get("usage") or usage
                if event.get("choices"):
                    first, last, events = first or now, now, events + 1
                if events > part.output + 1:
                    raise CalibrationError(f"{self.address}: more than the {part.output} tokens asked for")
        output = int(usage.get("completion_tokens", events))
        if not events or output < 1:
            raise CalibrationError(f"{self.address}: a completion without tokens; accepted: a streaming server")
        return int(usage.get("prompt_tokens", part.prompt)), output, first - sent, last - sent

    async def _events(self, answer: Any) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects of a stream of server-sent events."""
        async for line in answer.aiter_lines():
            text = line.removeprefix("data:").strip()
            if len(line) > _LONGEST_LINE:
                raise CalibrationError(f"{self.address}: a line of {len(line):,} characters in the stream")
            if not line.startswith("data:") or text == "[DONE]":
                continue
            try:
                event = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise CalibrationError(f"{self.address}: not a stream of JSON events: {shown(text)}") from error
            if not isinstance(event, dict) or "error" in event:
                raise CalibrationError(f"{self.address}: {shown(text)}")
            yield event
