"""A trace that notes what it is told."""

from __future__ import annotations


class NotedTrace:
    """A RequestTrace: what it was told, in order, with the names of tensors; and its children."""

    context = ""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.children: list[NotedTrace] = []

    def stamp(self, name, ns=None):
        self.told.append(name)

    def accepted(self, model, version, request):
        self.told.append(("accepted", model, version))

    def answered(self, outputs, execution_ns=None):
        self.told.append(("answered", [tensor.name for tensor in outputs], execution_ns))

    def child(self):
        self.children.append(NotedTrace())
        return self.children[-1]

    def close(self):
        self.told.append("closed")
