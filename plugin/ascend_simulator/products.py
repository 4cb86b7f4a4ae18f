"""What some products lack, as the documents have it, by the names of their chips."""

from __future__ import annotations


def has_hbm(soc: str) -> bool:
    """Whether its memory is HBM; else it is DDR."""
    return not soc.startswith("Ascend310")


def shares_memory(soc: str) -> bool:
    """Whether processes can share its memory."""
    return soc != "Ascend310" and not soc.startswith("Ascend310B")


def registers_host_memory(soc: str) -> bool:
    """Whether it can have memory that the host allocated without it."""
    return not soc.startswith("Ascend310")
