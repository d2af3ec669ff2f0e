"""A video that is steered while it is decoded: each step gives the action that leads to the next frame."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.length import DraftWindow
from fastcar_cli.decoding.engine import Decode, overlap
from fastcar_cli.decoding.sampling import drawing
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.actions import joined
from fastcar_cli.inputs.prompt import Clip, TokenisedClip
from fastcar_cli.pipeline.recipe import recipe_of
from fastcar_cli.pipeline.resolve import given, segment_of, spec_in
from fastcar_cli.pipeline.videos import Video
from fastcar_cli.system.device import torch_defaults

if TYPE_CHECKING:
    from fastcar_cli.models.checkpoint import Identity, LoadedModel

ROOM = 128  # about how many decoded frames the tables of a session hold; after these it begins new tables
REACH = {"table-actions": 1.0}  # maximum absolute value of an action's numbers, by model


class Ahead(NamedTuple):
    """A frame decoded before its action is known: the expected action, and the replay state that it overwrote."""

    action: NDArray[np.float32]
    replay: list[Tensor]
    passes: int


class World:
    """A session of play: `step` decodes one frame.

    Attributes:
        actions: all so far, float32 [A] each; the first C - 1 lead from one context frame to the next.
        context: the context frames, uint8 [C, H, W, 3].
        hits: steps whose frame was decoded ahead.
        reach: maximum absolute value of an action's numbers, or None if unknown.

    Raises:
        RequestError: for a model without actions, a replay ratio, or frames of another shape.

    """

    def __init__(
        self, model: LoadedModel, run: RunConfig, settings: DecodeSettings, frames: NDArray[np.uint8], seed: int
    ) -> None:
        """`frames` are uint8 [H, W, 3] or [n, H, W, 3] of the model's size; missing ones repeat the first."""
        self._model, self._network, self._resolved, self.spec = model, model.network, run, spec_in(model, run)
        self.seed, spec, context = seed, self.spec, self.spec.layout.context
        self.reach = REACH.get(model.name)
        if not spec.conditions:
            raise RequestError(f"the model {model.name!r} takes no actions", hint="use table-actions")
        if settings.rule.target is not None:
            raise RequestError("can't be used with play", key="replay.ratio", hint=("give ", Key("tau"), " instead"))
        frames = frames[None] if frames.ndim == 3 else frames
        first = np.concatenate([frames[:1].repeat(max(0, context - len(frames)), 0), frames])[:context]
        self.actions = [np.array(spec.steering.rest, np.float32) for _ in range(context - 1)]
        clip = Clip(first, np.array([spec.steering.rest] * context, np.float32))
        self.ids = model.tokenizer.read(clip).ids
        self.hits = self._frame = 0
        self._ahead: Ahead | None = None
        self._codes: list[Tensor] = []
        self._numbers, self._windows = drawing(seed, spec.frame_spec.depth), DraftWindow(settings.draft.window)
        segment = segment_of(spec)
        self._overlap = 0 if spec.layout.prompt_frames else overlap(replace(settings, frames=segment))
        # Tables cover whole contexts, so they end where the context rolls.
        rolls = max(0, ROOM // segment - 1)
        self._settings = replace(settings, frames=segment + rolls * (segment - self._overlap), segment=segment)
        with torch_defaults(), torch.inference_mode():
            self._decode, self._base = self._tables(list(self.ids)), 0
            self._decoder = self._network.play_decoder(self._decode.prompts.ids)
            shown = self._decoder.context()
            assert shown is not None
            self.context = self._network.to_bytes(shown)[0].cpu().numpy()

    def _rendered(self, codes: Tensor) -> NDArray[np.uint8]:
        return self._network.to_bytes(self._decoder.frame(codes[None])).cpu().numpy()[0]

    def _tables(self, ids: list[int], last: Sequence[Tensor] = ()) -> Decode:
        """A `Decode` that begins with these ids and the codes of the `last` frames."""
        settings, spec, size = self._settings, self.spec, self.spec.tokens_per_frame
        if self._codes:
            settings = replace(settings, rule=replace(settings.rule, first_frame=0))
        old = len(last) * size
        numbers = torch.cat([torch.zeros(old, spec.frame_spec.depth), self._numbers(settings.frames * size - old)])
        conditions = torch.zeros(1, spec.layout.context + settings.frames, spec.conditions)
        known = self.actions[self._frame - len(last) :]
        if known:
            conditions[0, : len(known)] = torch.from_numpy(np.stack(known))
        decode = Decode.of(self._network, [ids], settings, numbers[None], conditions=conditions)
        decode.windows = self._windows
        if last:
            decode.draws.give(torch.cat([*last])[None])
        decode.start()
        return decode

    def _make_room(self) -> None:
        """Make room for the next frame: roll the context, or begin new tables. This needs no action."""
        if self._frame - self._base == self._settings.frames:
            last, ids = self._codes[self._frame - self._overlap :], list(self.ids)
            if self.spec.layout.prompt_frames:
                ids = self._decode.next_prompts().ids[0].tolist()
            self._decode, self._base = self._tables(ids, last), self._frame - len(last)
        elif self._decode.full:
            self._decode.roll()
        decode, start = self._decode, (self._frame - self._base) * self._decode.frame
        decode.until = start
        while decode.at < start:
            decode.step()

    def _run(self, action: NDArray[np.float32]) -> None:
        """Decode the next frame with this action."""
        decode, frame = self._decode, self._frame - self._base
        assert decode.prompts.conditions is not None
        decode.prompts.conditions[0, self.spec.layout.context - 1 + frame] = torch.from_numpy(action)
        tokens = decode.places.refresh(decode.prompts, frame, decode.frame)
        decode.start().refresh(tokens)
        decode.draws.refresh(decode.prompts.conditions, frame * decode.frame, (frame + 1) * decode.frame)
        decode.until = (frame + 1) * decode.frame
        while decode.done < decode.until:
            decode.step()

    def ahead(self) -> bool:
        """Decode the next frame with the last action; `step` undoes it for another action. False if impossible now."""
        decode = self._decode
        if self._ahead is not None or not self.actions or decode.cache.overwrites:
            return False
        with torch_defaults(), torch.inference_mode():
            self._make_room()
            replay = [part.clone() for part in self._replay()]
            self._ahead = Ahead(self.actions[-1], replay, len(self._decode.drafter.passes))
            self._run(self.actions[-1])
        return True

    def _replay(self) -> list[Tensor]:
        """What a frame overwrites of the replay cache."""
        replay = self._decode.replay
        return [] if replay is None else [replay.outputs, replay.ages]

    def _take_back(self, ahead: Ahead) -> None:
        self._decode.take_back(self._frame - self._base)
        del self._decode.drafter.passes[ahead.passes :]
        for part, before in zip(self._replay(), ahead.replay, strict=True):
            part.copy_(before)

    def checked(self, action: ArrayLike | Mapping[str, Any]) -> NDArray[np.float32]:
        """An action, which may be by name (`Steering`), as float32 [A]. Raises RequestError for a wrong size, and for
        numbers that are not finite or out of range.
        """
        said = f"the action {str(action)[:80]}"
        if isinstance(action, Mapping) and (parts := self.spec.steering.parts):
            rows = joined(action, parts, said)
            action = rows[0] if len(rows) == 1 else rows
        try:
            wanted = np.asarray(action, np.float32)
        except (TypeError, ValueError):
            wanted = np.zeros(0, np.float32)
        if wanted.shape != (self.spec.conditions,) or not np.isfinite(wanted).all():
            raise RequestError(f"{said} is invalid", allowed=f"{self.spec.conditions} finite numbers")
        if self.reach is not None and (np.abs(wanted) > self.reach).any():
            raise RequestError(f"{said} is out of range", allowed=f"-{self.reach:g} to {self.reach:g}")
        return wanted

    def step(self, action: ArrayLike | Mapping[str, Any]) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Decode the frame after an action [A]: uint8 [H, W, 3], and its seconds, passes, hit, codes and replayed.

        `codes` are int64 [N, depth]; `replayed` is the share of layers that replayed, by code, float32 [rows, columns].
        Raises RequestError as `checked` does.
        """
        began, wanted = time.perf_counter(), self.checked(action)
        with torch_defaults(), torch.inference_mode():
            ahead, self._ahead = self._ahead, None
            hit = ahead is not None and np.array_equal(ahead.action, wanted)
            if ahead is None:
                self._make_room()
            elif not hit:
                self._take_back(ahead)
            decode = self._decode
            first = len(decode.drafter.passes) if ahead is None else ahead.passes
            if not hit:
                self._run(wanted)
            size, frame = decode.frame, self._frame - self._base
            codes = decode.codes[0, frame * size : (frame + 1) * size]
            image = self._rendered(codes)
        self._codes.append(codes.clone())
        self.actions.append(wanted)
        self._frame, self.hits = self._frame + 1, self.hits + hit
        info = {
            "seconds": time.perf_counter() - began,
            "passes": len(decode.drafter.passes) - first,
            "hit": hit,
            "codes": self._codes[-1].numpy(),
            "replayed": decode.replay_shares()[frame].view(self.spec.grid).numpy(),
        }
        return image, info

    @property
    def codes(self) -> NDArray[np.int64]:
        """Codes of the decoded frames, int64 [T*N, depth]."""
        return torch.cat(self._codes).numpy() if self._codes else np.zeros((0, self.spec.frame_spec.depth), np.int64)

    def recipe(self, identity: Identity) -> dict[str, Any]:
        """The recipe that reproduces the frames so far with the model of this identity."""
        frames = len(self.context) + self._frame
        run = self._resolved.changed({"generation.frames": frames, "generation.context_policy": "roll"})
        clip = TokenisedClip(self.ids, np.stack([*self.actions, np.zeros(self.spec.conditions, np.float32)]))
        return recipe_of(run, self._model, identity, clip, self.seed, self.ids)

    def video(self, identity: Identity) -> Video:
        """The frames so far, with their recipe."""
        with torch_defaults(), torch.inference_mode():
            frames = np.stack([*self.context, *map(self._rendered, self._codes)])
        report = {"seed": self.seed, "frames": len(frames), "hits": self.hits}
        return Video(frames, given(self._resolved.video.fps), report, self.recipe(identity))
