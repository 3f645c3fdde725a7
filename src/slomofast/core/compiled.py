"""`torch.compile` for the networks of several adapters in one process.

PyTorch compiles a function anew for every new situation (precision, gradients on or off, layout, batch) and after eight
of them quietly goes back to running it uncompiled. Three networks of one adapter meet four situations; a comparison of
methods meets many more.
"""

from __future__ import annotations

from torch import nn

SITUATIONS = 256  # of one function
ALL_SITUATIONS = 4096  # of one function under all its callers


def compile_network(network: nn.Module) -> None:
    """Compile a network's passes in place, names and state as they were."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SITUATIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, ALL_SITUATIONS)
    network.compile()
