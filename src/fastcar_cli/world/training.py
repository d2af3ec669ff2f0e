"""The training of a bundled model, from nothing to a model folder: the stages, and what comes before which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from fastcar_cli.errors import RequestError
from fastcar_cli.files import write_whole
from fastcar_cli.models.checkpoint import GenerationDefaults, save
from fastcar_cli.models.text import PhraseTokenizer
from fastcar_cli.models.video_model import ModelSpec, VideoModel
from fastcar_cli.world import recipe, train_decoder, train_tokenizer
from fastcar_cli.world.table import recipe as table
from fastcar_cli.world.table import train_decoder as table_decoder
from fastcar_cli.world.table import train_tokenizer as table_tokenizer
from fastcar_cli.world.table.lexicon import table_tokenizer as table_words
from fastcar_cli.world.table.tokenizer import TableTokenizer
from fastcar_cli.world.train_decoder import TrainSettings

Log = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """A bundled model's training.

    `tokenizer(output, steps, seed, deadline, log)` trains the tokenizer in a folder, of which the decoder's stages read
    the file `codes`; `read(file)` reads one; `stage` is a stage of the decoder, taking `settings` (see
    `train_decoder.train`). The model has the specification `spec`, the text tokenizer `words` and `defaults`.
    """

    codes: str
    tokenizer: Callable[[Path, int, int, float | None, Log], None]
    read: Callable[[Path], train_tokenizer.Tokenizer | TableTokenizer]
    settings: type[TrainSettings]
    stage: Callable[..., object]
    spec: ModelSpec
    words: Callable[[], PhraseTokenizer]
    defaults: GenerationDefaults

    def export(self, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
        """Write the model folder: config.json, model.safetensors and encoder.safetensors, as float16."""
        made, network = self.read(tokenizer), VideoModel(self.spec)
        network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
        # What draws the codes may have been trained further than when the checkpoint began.
        network.rqvae.load_state_dict(made.rqvae.state_dict())
        save(folder, network, self.words().to_dict(), self.defaults, torch.float16)
        halved = {k: v.half().contiguous() for k, v in made.encoder.state_dict().items()}
        save_file(halved, str(folder / "encoder.safetensors"))
        (folder / "encoder.safetensors").chmod(0o644)


def _mini_tokenizer(output: Path, steps: int, seed: int, deadline: float | None, log: Log) -> None:
    file = output / "tokenizer.safetensors"
    if not file.exists():
        train_tokenizer.train(file, steps=steps, seed=seed, deadline=deadline, log=log)


def _table_tokenizer(output: Path, steps: int, seed: int, deadline: float | None, log: Log) -> None:
    for stage in ("codes", "pixels"):
        settings = table_tokenizer.TokenizerSettings(steps, seed=seed)
        table_tokenizer.train(output, stage, settings, deadline=deadline, log=log)


WORLDS = {
    "mini": World(
        "tokenizer.safetensors",
        _mini_tokenizer,
        train_tokenizer.Tokenizer.load,
        TrainSettings,
        train_decoder.train,
        recipe.MINI,
        recipe.mini_tokenizer,
        recipe.MINI_DEFAULTS,
    ),
    # The decoder reads codes only, and those are final before the tokenizer has learned to draw them well.
    "table": World(
        "codes.safetensors",
        _table_tokenizer,
        TableTokenizer.load,
        table_decoder.TableSettings,
        table_decoder.train,
        table.TABLE,
        table_words,
        table.TABLE_DEFAULTS,
    ),
}


def _take(world: World, tokenizer: Path, output: Path) -> None:
    """Copy a trained tokenizer to where the other stages look for it."""
    try:
        world.read(tokenizer)
        content = tokenizer.read_bytes()
    except (OSError, SafetensorError, RuntimeError) as e:
        raise RequestError(f"`tokenizer` {tokenizer}: not a tokenizer of this world ({type(e).__name__})") from None
    for file in (output / world.codes, output / "tokenizer.safetensors"):
        if not file.exists():
            write_whole(file, content)
        elif file.read_bytes() != content:
            raise RequestError(f"`tokenizer` {tokenizer}: {file} is another one", hint="another folder, or none")


def run(
    name: str,
    output: Path,
    stages: Sequence[str],
    *,
    tokenizer: Path | None = None,
    tokenizer_steps: int,
    base: TrainSettings,
    replay_steps: int,
    deadline: float | None,
    log: Log,
) -> Path | None:
    """Train the stages of a world in folder `output` and return the model folder, if `export` is one of them.

    A trained `tokenizer` is copied there first. Raises RequestError where a stage before is missing, that file is none
    of this world or the folder has another, OutOfTime at `deadline`.
    """
    world = WORLDS[name]
    if tokenizer is not None:
        _take(world, tokenizer, output)
    if "tokenizer" in stages:
        world.tokenizer(output, tokenizer_steps, base.seed, deadline, log)
    codes, first = output / world.codes, output / "base" / "checkpoint.pt"
    replay = replace(base, steps=replay_steps).replay_stage()
    for stage, needed, settings, start in (("base", codes, base, None), ("replay", first, replay, first)):
        if stage in stages:
            if not needed.exists():
                raise RequestError(f"`stage` {stage} needs {needed}", hint="run the stage before it first")
            world.stage(output / stage, codes, settings, start=start, deadline=deadline, log=log)
    if "export" not in stages:
        return None
    file = output / "tokenizer.safetensors"
    checkpoint = next((f for s in ("replay", "base") if (f := output / s / "checkpoint.pt").exists()), None)
    if checkpoint is None or not file.exists():
        raise RequestError(f"`stage` export finds no checkpoint in {output}", hint="run the stages before it first")
    world.export(output / name, checkpoint, file)
    return output / name
