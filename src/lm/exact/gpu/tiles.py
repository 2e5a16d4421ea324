"""Tiles of the result of a product, and which of them is fastest."""

import functools
from typing import NamedTuple

import torch

from lm.exact import order
from lm.exact.gpu.launch import cdiv, num_processors

CHAIN_NUMBERS = 2**26  # sums of chains in memory in a product, 256 MiB


class Tile(NamedTuple):
    """Rows, columns and terms of a tile of a product, and the warps, stages and registers that compute it."""

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int = 3
    maxnreg: int | None = None  # registers of a thread: fewer let more programs run, that wait for each other's loads


SPEEDS = {
    Tile(128, 128, 16, 8): 1.0,
    Tile(128, 64, 16, 4): 1.0,
    Tile(64, 64, 16, 4): 1.03,
    Tile(64, 32, 16, 2): 0.92,
}
FLAT_TILE = Tile(16, 64, 32, 2)  # of few rows
BUSY_WARPS = 8  # warps that keep a multiprocessor busy
CHAIN_TIME = 0.2  # time to write and add the sums of a product's chains, as a fraction of the product's


def tile_time(tile: Tile, num_rows: int, num_columns: int, num_matrices: int, device: torch.device) -> float:
    """Estimate the time of each term of a product: the number of results of the busiest multiprocessor."""
    num_tiles = cdiv(num_rows, tile.BM) * cdiv(num_columns, tile.BN) * num_matrices
    tiles_of_processor = max(1, cdiv(num_tiles, num_processors(device)))
    num_results = tiles_of_processor * tile.BM * tile.BN
    busy_share = min(1.0, tiles_of_processor * tile.num_warps / BUSY_WARPS)
    return num_results / (SPEEDS[tile] * busy_share)


@functools.lru_cache(maxsize=1000)
def tile_for(num_rows: int, num_columns: int, num_matrices: int, device: torch.device) -> Tile:
    """Return the tile that takes the least time."""
    if num_rows <= FLAT_TILE.BM:
        return FLAT_TILE
    return min(SPEEDS, key=lambda tile: tile_time(tile, num_rows, num_columns, num_matrices, device))


@functools.lru_cache(maxsize=1000)
def is_faster_by_chains(num_rows: int, num_columns: int, num_terms: int, device: torch.device) -> bool:
    """Return True if a product of few tiles is faster when all of its chains are computed at the same time."""
    num_chains = num_terms // order.TERMS
    size = num_rows * num_columns

    # Not for few rows, a single chain, a shorter last chain, or more sums than fit.
    if num_rows <= FLAT_TILE.BM or num_chains < 2:
        return False
    if num_chains * order.TERMS < num_terms or num_chains * size > CHAIN_NUMBERS:
        return False

    # One chain after the other.
    tile = tile_for(num_rows, num_columns, 1, device)
    time_in_turns = tile_time(tile, num_rows, num_columns, 1, device)

    # All chains at once, as if each were a matrix, and then their sums.
    tile = tile_for(num_rows, num_columns, num_chains, device)
    time_at_once = tile_time(tile, num_rows, num_columns, num_chains, device) / num_chains
    time_of_sums = CHAIN_TIME * size / num_processors(device)
    return time_at_once + time_of_sums < time_in_turns
