"""The training of a bundled model, from nothing to a model folder: the stages, and what comes before which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.models.ivideogpt import IVideoGPTSpec
from fastcar_cli.models.loading.checkpoint import GenerationDefaults, save
from fastcar_cli.models.loading.registry import load
from fastcar_cli.models.video_model import ModelSpec, VideoModel
from fastcar_cli.worlds.phrases import PhraseTokenizer
from fastcar_lab.training.tokenizer import WorldTokenizer
from fastcar_lab.worlds.actions import train_tokenizer as actions_tokenizer
from fastcar_lab.worlds.actions import train_transformer
from fastcar_lab.worlds.actions.export import SHARPER, export
from fastcar_lab.worlds.actions.hyperparameters import MINI_ACTIONS
from fastcar_lab.worlds.actions.train_tokenizer import ActionsTokenizer
from fastcar_lab.worlds.mini import hyperparameters, train_decoder, train_tokenizer
from fastcar_lab.worlds.mini.train_decoder import TrainSettings
from fastcar_lab.worlds.table import hyperparameters as table
from fastcar_lab.worlds.table import train_decoder as table_decoder
from fastcar_lab.worlds.table import train_tokenizer as table_tokenizer
from fastcar_lab.worlds.table.lexicon import table_tokenizer as table_words
from fastcar_lab.worlds.table.tokenizer import TableTokenizer

Log = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """A bundled model's training.

    `tokenizer(output, steps, seed, deadline, log)` trains the tokenizer, a `kind`, in a folder, of which the decoder's
    stages read the file `codes`; `stage` is a stage of the decoder, taking `settings` (see
    `train_decoder.train`). The model has the specification `spec`; `export(spec, folder, checkpoint, tokenizer)`
    writes its folder, weights as float16, those of logits `sharper` times as large.
    """

    codes: str
    tokenizer: Callable[[Path, int, int, float | None, Log], None]
    kind: type[WorldTokenizer] | type[ActionsTokenizer]
    settings: type[TrainSettings]
    stage: Callable[..., object]
    spec: ModelSpec | IVideoGPTSpec
    export: Callable[..., None]
    sharper: float = 1.0


def _exports(
    kind: type[WorldTokenizer], words: Callable[[], PhraseTokenizer], defaults: GenerationDefaults
) -> Callable[..., None]:
    """`World.export` of a model that draws videos from texts: config.json, model and encoder.safetensors."""

    def export(spec: ModelSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
        made, network = kind.load(tokenizer), VideoModel(replace(spec, name=folder.name))
        network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
        # What draws the codes may have been trained further than when the checkpoint began.
        network.rqvae.load_state_dict(made.rqvae.state_dict())
        save(folder, network, words().to_dict(), defaults, torch.float16)
        made.save_encoder(folder)

    return export


def _one_file(train: Callable[..., object]) -> Callable[[Path, int, int, float | None, Log], None]:
    """`World.tokenizer` of one that is trained into one file."""

    def tokenizer(output: Path, steps: int, seed: int, deadline: float | None, log: Log) -> None:
        file = output / "tokenizer.safetensors"
        if not file.exists():
            train(file, steps=steps, seed=seed, deadline=deadline, log=log)

    return tokenizer


def _table_tokenizer(output: Path, steps: int, seed: int, deadline: float | None, log: Log) -> None:
    for stage in ("codes", "pixels"):
        settings = table_tokenizer.TokenizerSettings(steps, seed=seed)
        table_tokenizer.train(output, stage, settings, deadline=deadline, log=log)


WORLDS = {
    "mini": World(
        "tokenizer.safetensors",
        _one_file(train_tokenizer.train),
        train_tokenizer.Tokenizer,
        TrainSettings,
        train_decoder.train,
        hyperparameters.MINI,
        _exports(train_tokenizer.Tokenizer, hyperparameters.mini_tokenizer, hyperparameters.MINI_DEFAULTS),
    ),
    # The decoder reads codes only, and those are final before the tokenizer has learned to draw them well.
    "table": World(
        "codes.safetensors",
        _table_tokenizer,
        TableTokenizer,
        table_decoder.TableSettings,
        table_decoder.train,
        table.TABLE,
        _exports(TableTokenizer, table_words, table.TABLE_DEFAULTS),
    ),
    "mini-actions": World(
        "tokenizer.safetensors",
        _one_file(actions_tokenizer.train),
        ActionsTokenizer,
        train_transformer.ActionSettings,
        train_transformer.train,
        MINI_ACTIONS,
        export,
        SHARPER,
    ),
}


def _put(file: Path, made: Path, what: Text) -> None:
    """Give a file that was made its name, where none of another content has it."""
    if file.exists() and file.read_bytes() != made.read_bytes():
        made.unlink()
        raise RequestError(f"{file} is another one", where=what, hint="another folder, or none")
    made.replace(file)


def _take(world: World, tokenizer: WorldTokenizer | ActionsTokenizer, output: Path, what: Text) -> None:
    """Save a trained tokenizer to where the other stages look for it."""
    for name in dict.fromkeys((world.codes, "tokenizer.safetensors")):
        made = output / f".{name}"
        tokenizer.save(made)
        _put(output / name, made, what)


def _begin_with(world: World, model: str, output: Path) -> Path:
    """Save a model's tokenizer, and its weights as a checkpoint for the first stage to begin from; its path."""
    what = (Key("model"), f" {model}")
    _take(world, world.kind.of_model(model), output, what)
    network = load(model).network
    if replace(network.spec, name=world.spec.name) != world.spec:
        raise RequestError("made of other parts than this world's model", where=what)
    made = output / ".start.pt"
    weights = network.state_dict()
    if world.sharper != 1.0:
        weights["lm_head.weight"] = weights["lm_head.weight"] / world.sharper
    torch.save({"model": weights}, made)
    _put(output / "start.pt", made, what)
    return output / "start.pt"


def run(
    name: str,
    output: Path,
    stages: Sequence[str],
    *,
    tokenizer: Path | None = None,
    model: str | None = None,
    tokenizer_steps: int,
    base: TrainSettings,
    replay_steps: int,
    deadline: float | None,
    log: Log,
) -> Path | None:
    """Train the stages of a world in folder `output`; `export` makes a model folder of each that was trained.

    Returns the last one's folder, or None without `export`; `NAME-dense` is of the base stage, `NAME` of the replay
    stage. A trained `tokenizer` is copied there first. With `model`, a name or folder, its tokenizer is, and the first
    stage begins with its weights. Raises RequestError where a stage before is missing, file or model are none of this
    world or the folder has others, OutOfTime at `deadline`.
    """
    world = WORLDS[name]
    start = None if model is None else _begin_with(world, model, output)
    if tokenizer is not None:
        try:
            made = world.kind.load(tokenizer)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise RequestError(
                f"not a tokenizer of this world ({type(e).__name__})", key="tokenizer", value=tokenizer
            ) from None
        _take(world, made, output, (Key("tokenizer"), f" {tokenizer}"))
    if "tokenizer" in stages:
        world.tokenizer(output, tokenizer_steps, base.seed, deadline, log)
    codes, first = output / world.codes, output / "base" / "checkpoint.pt"
    if start is not None and "base" not in stages and not first.exists():
        first = start
    replay = replace(base, steps=replay_steps).replay_stage()
    for stage, needed, settings, before in (("base", codes, base, start), ("replay", first, replay, first)):
        if stage in stages:
            if not needed.exists():
                raise RequestError(f"needs {needed}", key="stage", value=stage, hint="run the stage before it first")
            world.stage(output / stage, codes, settings, spec=world.spec, start=before, deadline=deadline, log=log)
    if "export" not in stages:
        return None
    file = output / "tokenizer.safetensors"
    trained = {f"{name}{end}": output / stage / "checkpoint.pt" for stage, end in (("base", "-dense"), ("replay", ""))}
    trained = {folder: checkpoint for folder, checkpoint in trained.items() if checkpoint.exists()}
    if not trained or not file.exists():
        raise RequestError(
            f"finds no checkpoint in {output}", key="stage", value="export", hint="run the stages before it first"
        )
    for folder, checkpoint in trained.items():
        world.export(world.spec, output / folder, checkpoint, file)
    return output / folder
