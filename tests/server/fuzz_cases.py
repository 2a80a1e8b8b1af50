"""Fuzz cases: what a broken or hostile client does with each rpc.

A case is a method and the steps of one call. The cases of a seed are numbered, and each can be generated without the
others. There are three kinds of messages: random bytes, well-formed messages with unusual values, and mostly valid
messages with one fault in a field or in the bytes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Final, Literal

from google.protobuf.descriptor import MethodDescriptor

from tests.server.fuzz_messages import Messages
from whamming.server.app import SERVICES

METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}
"""Our methods by path."""
FOREIGN: Final = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
"""Methods that gRPC's own packages serve."""
UNKNOWN: Final = ("/whamming.v1.SearchService/Nothing", "/whamming.v2.SearchService/Search", "/")

Verb = Literal["send", "read", "yield", "close", "cancel"]
Step = tuple[Verb, Any]
"""A verb and its value: ``send`` these bytes, ``read`` up to this many responses, ``yield`` this many times to other
tasks, ``close`` the sending side, or ``cancel`` the call."""


@dataclass(frozen=True)
class Case:
    """One call."""

    method: str
    steps: tuple[Step, ...]
    timeout: float | None = None
    """The client's deadline in seconds. None: no deadline."""

    @property
    def sent(self) -> list[bytes]:
        """The messages that are sent."""
        return [value for verb, value in self.steps if verb == "send"]

    @property
    def cancels(self) -> bool:
        """Whether the client cancels the call."""
        return any(verb == "cancel" for verb, _ in self.steps)

    def to_json(self) -> str:
        steps = [[verb, value.hex() if verb == "send" else value] for verb, value in self.steps]
        return json.dumps({"method": self.method, "steps": steps, "timeout": self.timeout})

    @classmethod
    def from_json(cls, text: str) -> Case:
        values = json.loads(text)
        steps = tuple((verb, bytes.fromhex(value) if verb == "send" else value) for verb, value in values["steps"])
        return cls(values["method"], steps, values["timeout"])


def make_case(seed: int, number: int) -> Case:
    """Generate a case. The same seed and number always give the same case."""
    return _Maker(random.Random(f"{seed}/{number}")).case()


_WEIGHTS: Final = {  # relative frequency of each method; 3 for the others
    "Search": 34,
    "SearchOnce": 12,
    "Upsert": 12,
    "Delete": 5,
    "Get": 5,
    "Scan": 4,
    "CreateIndex": 7,
    "GetIndex": 4,
    "DeleteIndex": 2,
}


class _Maker(Messages):
    """Generates one case."""

    def case(self) -> Case:
        rng = self.rng
        if self.chance(0.03):
            return self.foreign()
        path = rng.choices(list(METHODS), [_WEIGHTS.get(method.name, 3) for method in METHODS.values()])[0]
        method = METHODS[path]
        if method.client_streaming:
            steps = self.conversation(method)
        elif self.chance(0.01):  # a wrong number of messages
            steps = [("send", self.message(method)) for _ in range(rng.choice((0, 2, 3)))]
        else:
            steps = [("send", self.message(method))]
        if self.chance(0.06):
            steps.insert(rng.randint(0, len(steps)), ("cancel", None))
            steps.insert(steps.index(("cancel", None)), ("yield", rng.choice((0, 1, 2, 5, 20))))
        timeout = rng.choice((0.0, 0.001, 0.003, 0.01, 0.1)) if self.chance(0.02) else None
        if not steps or (not method.client_streaming and not any(verb == "send" for verb, _ in steps)):
            timeout = 0.2  # gRPC waits for the missing message until the deadline
        return Case(path, tuple(steps), timeout)

    def foreign(self) -> Case:
        """A call of a method that is not ours."""
        path = self.rng.choice((*FOREIGN, *UNKNOWN))
        data = self.rng.choice((b"", b"\x0a\x00", b"\x0a\x17whamming.v1.ItemService", self.junk(), self.wire()))
        steps: list[Step] = [("send", data)]
        if path.endswith("Watch"):
            steps += [("yield", 3), ("cancel", None)]
        return Case(path, tuple(steps))

    def conversation(self, method: MethodDescriptor) -> list[Step]:
        """The steps on a stream: messages, and pauses in which responses are read or not."""
        rng = self.rng
        steps: list[Step] = []
        eager = self.chance(0.7)
        if eager:
            steps.append(("read", 10**9))
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 6))):
            if self.chance(0.3):
                steps.append(("yield", rng.choice((1, 3, 10))))
            if not eager and self.chance(0.3):
                steps.append(("read", rng.randint(1, 3)))
            steps.append(("send", self.message(method)))
        if self.chance(0.2):
            steps.append(("yield", rng.choice((1, 10, 30))))
        steps.append(("close", None))
        return steps
