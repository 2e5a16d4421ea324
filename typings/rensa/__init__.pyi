from collections.abc import Sequence

import numpy as np

class RMinHashDigestMatrix:
    def to_rows(self) -> list[list[int]]: ...

class RMinHash:
    @classmethod
    def digest_matrix_from_flat_token_hashes(
        cls, token_hashes: np.ndarray, row_offsets: np.ndarray, num_perm: int, seed: int
    ) -> RMinHashDigestMatrix: ...
    @classmethod
    def hash_token_sets(cls, token_sets: Sequence[Sequence[bytes]]) -> list[list[int]]: ...
