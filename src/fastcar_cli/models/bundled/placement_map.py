"""Embeds a prompt's placements into each visual token: the ground under the token's patch, and nearby objects.

Placements say where each object starts and how it moves; `inputs/worlds/physics.py` computes its position in a frame.
An object's embedding has its appearance and its offset from the patch; from it the decoder predicts the patch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastcar_cli.inputs.worlds.physics import STEP, TURNS, MapSpec, Scenery, read_scenery, simulate
from fastcar_cli.models.decoder import table

_FAR = 19  # maximum distance in steps of an object from the middle of a patch that it appears in
GAIN = 4.0  # factor on the output, so that weights of ordinary size and learning rate are effective
_AXES = 4  # numbers of a position: offset right and down of the object as seen, and of its shadow


class Near(NamedTuple):
    """The surroundings of visual tokens, as rows of the tables of a `PlacementMap`; all int64."""

    tokens: Tensor  # [g] tokens that have a ground, counted over all prompts
    grounds: Tensor  # [g] the row of that ground
    seen_by: Tensor  # [n] the token of each pair of a token and an object near it
    places: Tensor  # [n, 4] the object's position
    poses: Tensor  # [n] its shape, size and turn
    looks: Tensor  # [n, 3] its color, material and light

    def to(self, device: torch.device | str) -> Near:
        """The same on a device."""
        return Near(*(x.to(device) for x in self))


class PlacementMap(nn.Module):
    """Embeddings [..., width] of the surroundings of visual tokens; zeros for prompts without placements."""

    def __init__(self, spec: MapSpec, grid: tuple[int, int], patch: int, width: int) -> None:
        super().__init__()
        self.spec, self.grid, self.patch = spec, grid, patch
        self._phases, self._cells = spec.period // STEP, spec.period // patch
        self._lights, self._sizes = spec.count("light"), spec.count("size")
        self.ground = table(spec.count("floor") * self._lights * self._cells * self._phases, width)
        self.place = table(_AXES * (2 * _FAR + 1), spec.hidden)
        self.pose = table(spec.count("shape") * self._sizes * TURNS, spec.hidden)
        self.color = table(spec.count("color"), spec.hidden)
        self.material = table(spec.count("material"), spec.hidden)
        self.light = table(self._lights, spec.hidden)
        self.thing = nn.Linear(spec.hidden, width, bias=False)

    def forward(self, ids: Tensor, drawn: Tensor) -> Tensor:
        """Vectors [P, K, width] for prompts ids [P, L] and the tokens `drawn` [P or 1, K], counted from 0."""
        shape = len(ids), drawn.shape[1]
        return self.embed(self.near(ids, drawn.cpu()), shape[0] * shape[1]).view(*shape, -1)

    def near(self, ids: Tensor, drawn: Tensor) -> Near:
        """The surroundings of tokens `drawn` [P or 1, K] of prompts ids [P, L], on the CPU, without weights."""
        tokens = drawn.expand(len(ids), -1)
        none = torch.zeros(0, dtype=torch.long)
        grounds = [[none, none]]
        things = [[none, none.view(0, _AXES), none, none.view(0, 3)]]
        for video, row in enumerate(ids.tolist()):
            scenery = read_scenery(row, self.spec)
            if scenery.things:
                first = video * tokens.shape[1]
                ground, seen = self._seen(scenery, tokens[video])
                grounds.append([torch.arange(first, first + tokens.shape[1]), ground])
                things += [[first + part[0], *part[1:]] for part in seen]
        return Near(*(torch.cat(part) for part in (*zip(*grounds, strict=True), *zip(*things, strict=True))))

    def embed(self, near: Near, tokens: int) -> Tensor:
        """Vectors [tokens, width]; zeros if nothing is near. Entries of a token with index `tokens` are ignored."""
        weight = self.ground.weight
        near = near.to(weight.device)
        result = weight.new_zeros(tokens + 1, weight.shape[1]).index_add(0, near.tokens, self.ground(near.grounds))
        color, material, light = near.looks.unbind(1)
        joined = self.place(near.places).sum(1) + self.pose(near.poses) + self.light(light)
        joined = joined + self.color(color) + self.material(material)
        # Under autocast the layer returns bfloat16.
        return GAIN * result.index_add(0, near.seen_by, self.thing(F.gelu(joined)).to(result.dtype))[:tokens]

    def _seen(self, scenery: Scenery, drawn: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        """Rows of the ground under each of a video's tokens [K], and for each object: the tokens that it is near [n],
        rows of positions [n, 4] and poses [n], and color, material and light [n, 3].
        """
        rows, columns = self.grid
        frame, row, column = drawn // (rows * columns), drawn // columns % rows, drawn % columns
        phase = column * (self.patch // STEP) + scenery.shift + frame * (scenery.pan // STEP)
        known = (scenery.floor * self._lights + scenery.light) * self._cells + row % self._cells
        paths, _ = simulate(scenery.things, scenery.pan, int(frame.max()) + 1)
        right, down = self.spec.shadow
        middle = torch.stack([column, row, column, row], -1) * self.patch + self.patch // 2
        axes = torch.arange(_AXES) * (2 * _FAR + 1) + _FAR
        near_things = []
        for thing, path in zip(scenery.things, paths, strict=True):
            at = torch.tensor([(p.x, p.y - p.z, p.x + right * p.z, p.y + down * p.z) for p in path])
            steps = ((at[frame] - middle) / STEP).round().long()
            near = steps.abs() < _FAR
            chosen = ((near[:, 0] & near[:, 1]) | (near[:, 2] & near[:, 3])).nonzero()[:, 0]
            turns = torch.tensor([p.turn for p in path])[frame[chosen]]
            pose = (thing.shape * self._sizes + thing.size) * TURNS + turns
            look = torch.tensor([thing.color, thing.material, scenery.light]).expand(len(chosen), -1)
            near_things.append([chosen, steps[chosen].clamp(-_FAR, _FAR) + axes, pose, look])
        return known * self._phases + phase % self._phases, near_things
