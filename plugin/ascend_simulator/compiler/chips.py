"""The chips that --soc_version may name: those of CANN's documents and tools, and the simulator's.

A server's chip is called "Ascend" and the name that npu-smi shows; from A3 on its own name is put
before that.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final = (
    "AscendSimulator",
    *("Ascend310", "Ascend310B1", "Ascend310B2", "Ascend310B3", "Ascend310B4"),
    *("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
    *("Ascend910A", "Ascend910B", "Ascend910PremiumA", "Ascend910ProA", "Ascend910ProB"),
    *("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
    *("Ascend910_9361", "Ascend910_9362", "Ascend910_9372", "Ascend910_9381", "Ascend910_9382"),
    *("Ascend910_9391", "Ascend910_9392"),
    *("Ascend950DT_9581", "Ascend950DT_9582", "Ascend950DT_9584"),
    *("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"),
)
"""Family by family."""
