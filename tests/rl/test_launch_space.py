"""Spaces of launch parameters: their indices, what a choice launches, and the knob that is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lethe.provenance import ROOT
from lethe.rl.launch_space import (
    EACH,
    HELD_OUT,
    SHAPES,
    SPACES,
    WARP,
    Space,
    candidate_of,
    selected,
)


@pytest.mark.parametrize("op", SPACES)
def test_index_and_picks_are_inverse_and_in_order(op):
    space = SPACES[op]
    assert [space.index(space.picks(i)) for i in range(len(space))] == list(range(len(space)))
    for i, config in enumerate(space.configs()):
        picked = {name: c[p] for (name, c), p in zip(space.knobs, space.picks(i), strict=True)}
        assert config == picked


def test_a_space_survives_its_record():
    for space in SPACES.values():
        assert Space.of(json.loads(json.dumps(space.facts()))) == space


@pytest.mark.parametrize("op", SPACES)
def test_every_choice_is_a_tile_whose_threads_hold_the_same(op):
    seen = set()
    for config in SPACES[op].configs():
        candidate = candidate_of(SPACES[op], config)
        tile = candidate.tile
        assert tile.lanes * tile.channels == WARP * EACH * tile.warps
        seen.add((tile, candidate.chunk, candidate.by_state))
    assert len(seen) == len(SPACES[op]), "two configurations are the same launch"


def test_the_defaults_of_the_kernels_are_among_the_choices():
    from lethe.kernels.mamba3 import scan_launch

    tiles = {candidate_of(SPACES["C1"], c).tile for c in SPACES["C1"].configs()}
    assert {scan_launch.WIDE_TILE, scan_launch.NARROW_TILE} <= tiles
    assert scan_launch.BACKWARD_TILE in {candidate_of(SPACES["C2"], c).tile for c in SPACES["C2"].configs()}


def test_the_selectors_choice_is_its_own():
    wide = selected(SPACES["C1"], (8, 2048, 2048), 132)
    assert (wide.tile.lanes, wide.by_state) == (1, True)
    assert selected(SPACES["C6"], (1, 512, 256), 132).by_state is None
    long = selected(SPACES["C1"], (1, 16384, 256), 132)
    assert long.chunk is not None and long.chunk % 32 == 0


def test_held_out_shapes_are_never_trained_on():
    assert not set(SHAPES) & set(HELD_OUT)
    assert len(set(SHAPES)) == len(SHAPES) and len(set(HELD_OUT)) == len(HELD_OUT)


PTX = """
import os, sys
from lethe.verifier.executors import devices
devices.activate(90)
from triton.runtime.jit import JITFunction
from lethe.kernels.mamba3.cases import Case
from lethe.kernels.mamba3.scan_launch import Tile
from lethe.kernels.mamba3.tune import Candidate
run, found = JITFunction.run, {}
for stages in (1, 4):
    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, num_stages=stages, **options)
        found[self.fn.__name__, stages] = kernel.asm["ptx"]
        return kernel
    JITFunction.run = compile_only
    Candidate(Tile(2, 4, 16), 32, False).step(Case("scan", 1, 64, 32, states=4), "meta")()
names = {name for name, _ in found}
print(all(found[name, 1] == found[name, 4] for name in names), *sorted(names))
"""


@pytest.mark.compiles
@pytest.mark.slow
def test_the_number_of_stages_changes_nothing():
    """So it is no knob: a kernel without `tl.dot` has the same PTX at every number of pipeline stages."""
    done = subprocess.run([sys.executable, "-c", PTX], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["True", "chunk_state", "combine_chunks", "scan_output"]
