"""Transformers and sparse memory, executable: the shared package of the book.

The modules are the vocabulary of the theory, and their imports point one way: ``encodings`` → ``kernels`` → ``model``;
``targets`` knows no model, ``train`` fits any network, ``claims`` and ``show`` stand beside.
"""

import torch

from memlib.checks import integer

__version__ = "0.1.0"
__all__ = ["__version__", "reproducible"]


def reproducible(seed: int = 0) -> torch.Generator:
    """Return a fresh generator for ``seed`` and use one thread, so that a run gives the same numbers everywhere.

    No global seed is set: whatever is random takes a generator, and a cell that forgets it is not reproducible.
    """
    seed = integer("seed", seed, 0)
    if seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {seed}")
    torch.set_num_threads(1)
    return torch.Generator().manual_seed(seed)
