"""The parameters of an evaluation, without torch: the stages fetch and train check them before they are used."""

import dataclasses
from typing import Annotated

from lm.core.params import FRACTION, SEED, Range, at_least


@dataclasses.dataclass(frozen=True)
class EvalParams:
    """The section `eval` of params.yaml."""

    stride_fraction: Annotated[float, FRACTION]
    num_samples: Annotated[int, at_least(1)]
    sample_tokens: Annotated[int, at_least(1)]
    temperature: Annotated[float, Range(lambda value: value >= 0, "0 or more")]
    top_k: Annotated[int, at_least(1)]
    seed: Annotated[int, SEED]

    def stride_tokens(self, seq_len: int) -> int:
        """Return the tokens by which windows of `seq_len` tokens move, at least 1."""
        return max(1, round(self.stride_fraction * seq_len))
