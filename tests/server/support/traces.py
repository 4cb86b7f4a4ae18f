"""A trace that records its calls."""

from __future__ import annotations


class NotedTrace:
    """A RequestTrace that records its events, with the names of tensors, and its children."""

    context = ""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.children: list[NotedTrace] = []

    def stamp(self, name, ns=None):
        self.events.append(name)

    def accepted(self, model, version, request):
        self.events.append(("accepted", model, version))

    def answered(self, outputs, execution_ns=None):
        self.events.append(("answered", [tensor.name for tensor in outputs], execution_ns))

    def child(self):
        self.children.append(NotedTrace())
        return self.children[-1]

    def close(self):
        self.events.append("closed")
