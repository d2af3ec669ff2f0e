"""The training of a bundled model, from nothing to a model folder: the stages, and what comes before which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from fastcar_cli.checkpoints.open import load
from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_lab.storage import save
from fastcar_lab.training.decoder import TrainSettings
from fastcar_lab.training.loop import Watch
from fastcar_lab.training.tokenizer import TrainedTokenizer, WorldTokenizer


@dataclass(frozen=True)
class Training:
    """How a world's model is trained.

    `steps` are those of tokenizer, base and replay stage where nothing else is given. `tokenizer(output, steps, seed,
    watch)` trains the tokenizer, a `kind`, in a folder, of which the decoder's stages read the file `codes`;
    `stage` is a stage of the decoder, taking `settings` (see `decoder.run_stage`). `export(spec, folder, checkpoint,
    tokenizer)` writes a model folder, weights as float16.
    """

    steps: tuple[int, int, int]
    codes: str
    tokenizer: Callable[[Path, int, int, Watch], None]
    kind: type[TrainedTokenizer]
    settings: type[TrainSettings]
    stage: Callable[..., object]
    export: Callable[..., None]


def text_model(
    kind: type[WorldTokenizer], words: Callable[[], PhraseTokenizer], defaults: GenerationDefaults
) -> Callable[..., None]:
    """`Training.export` of a model that draws videos from texts: config.json, model and encoder.safetensors."""

    def export(spec: ModelSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
        made, network = kind.load(tokenizer), VideoModel(replace(spec, name=folder.name))
        network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
        # What draws the codes may have been trained further than when the checkpoint began.
        network.rqvae.load_state_dict(made.rqvae.state_dict())
        save(folder, network, words().to_dict(), defaults, torch.float16)
        made.save_encoder(folder)

    return export


def one_file(train: Callable[..., object]) -> Callable[[Path, int, int, Watch], None]:
    """`Training.tokenizer` of one that is trained into one file."""

    def tokenizer(output: Path, steps: int, seed: int, watch: Watch) -> None:
        file = output / "tokenizer.safetensors"
        if not file.exists():
            train(file, steps=steps, seed=seed, watch=watch)

    return tokenizer


def _put(file: Path, made: Path, what: Text) -> None:
    """Give a file that was made its name, where none of another content has it."""
    if file.exists() and file.read_bytes() != made.read_bytes():
        made.unlink()
        raise RequestError(f"{file} is another one", where=what, hint="give another folder, or none")
    made.replace(file)


def _take(training: Training, tokenizer: TrainedTokenizer, output: Path, what: Text) -> None:
    """Save a trained tokenizer to where the other stages look for it."""
    for name in dict.fromkeys((training.codes, "tokenizer.safetensors")):
        made = output / f".{name}"
        tokenizer.save(made)
        _put(output / name, made, what)


def _begin_with(training: Training, spec: Spec, model: str, output: Path) -> Path:
    """Save a model's tokenizer, and its weights as a checkpoint for the first stage to begin from; its path."""
    what = (Key("model"), f" {model}")
    _take(training, training.kind.of_model(model), output, what)
    network = load(model).network
    if replace(network.spec, name=spec.name) != spec:
        raise RequestError("made of other parts than this world's model", where=what)
    made = output / ".start.pt"
    torch.save({"model": network.state_dict()}, made)
    _put(output / "start.pt", made, what)
    return output / "start.pt"


def run(
    name: str,
    spec: Spec,
    training: Training,
    output: Path,
    stages: Sequence[str],
    *,
    tokenizer: Path | None = None,
    model: str | None = None,
    tokenizer_steps: int,
    base: TrainSettings,
    replay_steps: int,
    watch: Watch,
) -> Path | None:
    """Train the stages of a world in folder `output`; `export` makes a model folder of each that was trained.

    Returns the last one's folder, or None without `export`; `NAME-dense` is of the base stage, `NAME` of the replay
    stage. A trained `tokenizer` is copied there first. With `model`, a name or folder, its tokenizer is, and the first
    stage begins with its weights. Raises RequestError where a stage before is missing, file or model are none of this
    world or the folder has others, OutOfTime at the deadline.
    """
    start = None if model is None else _begin_with(training, spec, model, output)
    if tokenizer is not None:
        try:
            made = training.kind.load(tokenizer)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise RequestError(
                f"not a tokenizer of this world ({type(e).__name__})", key="tokenizer", value=tokenizer
            ) from None
        _take(training, made, output, (Key("tokenizer"), f" {tokenizer}"))
    if "tokenizer" in stages:
        training.tokenizer(output, tokenizer_steps, base.seed, watch)
    codes, first = output / training.codes, output / "base" / "checkpoint.pt"
    if start is not None and "base" not in stages and not first.exists():
        first = start
    replay = replace(base, steps=replay_steps).replay_stage()
    for stage, needed, settings, before in (("base", codes, base, start), ("replay", first, replay, first)):
        if stage in stages:
            if not needed.exists():
                raise RequestError(f"needs {needed}", key="stage", value=stage, hint="run the stage before it first")
            training.stage(output / stage, codes, settings, spec=spec, start=before, watch=watch)
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
        training.export(spec, output / folder, checkpoint, file)
    return output / folder
