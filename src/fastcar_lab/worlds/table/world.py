"""`table`: one to three objects on a ground, which rest, move, hit each other and pass, 128 x 128 pixels."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.inputs.prompt import Prompt, PromptReader
from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_lab.training.loop import Watch
from fastcar_lab.training.stages import Training, text_model
from fastcar_lab.worlds import shares
from fastcar_lab.worlds.protocol import CaptionedWorld, Video
from fastcar_lab.worlds.table.analyser import analyse, judge
from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.hyperparameters import TABLE, TABLE_DEFAULTS
from fastcar_lab.worlds.table.lexicon import PHRASES, table_tokenizer
from fastcar_lab.worlds.table.render import render
from fastcar_lab.worlds.table.said import said_in, said_of
from fastcar_lab.worlds.table.scene import SIDE, Scene
from fastcar_lab.worlds.table.stories import scene_of
from fastcar_lab.worlds.table.tokenizer import TableTokenizer


def _train_tokenizer(output: Path, steps: int, seed: int, watch: Watch) -> None:
    """See `Training.tokenizer`."""
    from fastcar_lab.worlds.table import train_tokenizer

    for stage in ("codes", "pixels"):
        settings = train_tokenizer.TokenizerSettings(steps, seed=seed)
        train_tokenizer.train(output, stage, settings, watch=watch)


class Table(CaptionedWorld):
    """See `World` and `CaptionedWorld`."""

    name = "table"
    spec = TABLE

    @property
    def training(self) -> Training:
        """See `World`."""
        from fastcar_lab.worlds.table import train_decoder

        return Training(
            # The tokenizer has so many in each of its two halves.
            steps=(7000, 10600, 2600),
            # The decoder reads codes only, and those are final before the tokenizer has learned to draw them well.
            codes="codes.safetensors",
            tokenizer=_train_tokenizer,
            kind=TableTokenizer,
            settings=train_decoder.TableSettings,
            stage=train_decoder.train,
            export=text_model(TableTokenizer, table_tokenizer, TABLE_DEFAULTS),
        )

    def held_out(self, count: int, seed: int) -> list[tuple[Scene, Prompt]]:
        """See `World`."""
        rng = random.Random(seed)
        scenes = [scene_of(seed, i, kept_out=True) for i in range(count)]
        return [(s, caption(s, rng)) for s in scenes]

    def kind(self, tokens: Sequence[str]) -> str:
        """See `CaptionedWorld`."""
        said = said_in(tokens)
        if said.camera:
            return "panning"
        if said.relation in ("hits", "chain", "in_front_of", "behind"):
            return "meeting"
        return "moving" if any(thing.deed not in (None, "still") for thing in said.things) else "still"

    def render(self, scene: Scene) -> Video:
        """See `World`."""
        return render(scene)

    def score(self, scenes: Sequence[Scene], videos: Sequence[Video]) -> dict[str, Any]:
        """See `World`: over all videos and over those with one, two and three objects, with their number."""
        rows = [judge(analyse(v), said_of(s)) for s, v in zip(scenes, videos, strict=True)]
        groups: dict[str, list[Mapping[str, bool]]] = {"all": list(rows)}
        for scene, row in zip(scenes, rows, strict=True):
            groups.setdefault(f"{len(scene.things)} objects", []).append(row)
        return {name: {"videos": len(rows), **shares(rows)} for name, rows in sorted(groups.items())}

    def tokenizer_quality(self, tokenizer: str, count: int, seed: int) -> dict[str, Any]:
        """See `World`."""
        from fastcar_lab.worlds.table.train_tokenizer import evaluate

        file = Path(tokenizer)
        made = TableTokenizer.load(file) if file.is_file() else TableTokenizer.of_model(tokenizer)
        scenes = [scene for scene, _ in self.held_out(count, seed)]
        drawn = [made.decode(made.encode(torch.from_numpy(render(s)))).numpy() for s in scenes]
        return {**evaluate(made, count), "right": self.score(scenes, drawn)}

    def recognises(self, reader: PromptReader, height: int, width: int) -> bool:
        """See `CaptionedWorld`."""
        if not isinstance(reader, PhraseTokenizer) or height != SIDE or width != SIDE:
            return False
        # Lists where they come from a file.
        return {token: tuple(phrases) for token, phrases in reader.phrases.items()} == PHRASES

    def judge(self, video: Video, tokens: Sequence[str]) -> dict[str, bool | None]:
        """See `CaptionedWorld`."""
        said = said_in(tokens)
        right: dict[str, bool | None] = dict(judge(analyse(video), said))
        all_right = right.pop("all")
        for name in ("ground", "light"):
            if getattr(said, name) is None:
                right[name] = None
        return {**right, "all_right": all_right}


WORLD = Table()
