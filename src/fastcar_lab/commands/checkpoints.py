"""Commands about checkpoints: `dummy` writes one with random weights, `store` makes its files smaller,
`conversion-error` measures what formats cost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.cli.flags import one_of, refuse
from fastcar_cli.cli.options import Debug
from fastcar_cli.errors import RequestError


def dummy(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    format_: Annotated[
        str, typer.Option("--format", help="Family of the model: vila-u, ivideogpt, cosmos or rlvr.")
    ] = "vila-u",
    layers: Annotated[
        int | None, typer.Option(help="Number of layers of vila-u or cosmos. [default: vila-u: 2; cosmos: all]", min=1)
    ] = None,
    shards: Annotated[int, typer.Option(help="Number of weight files for vila-u's decoder.", min=1)] = 1,
    medium: Annotated[bool, typer.Option("--medium", help="ivideogpt with 436 M parameters, not 138 M.")] = False,
    pixels: Annotated[int, typer.Option(help="Width and height of ivideogpt's frames: 64 or 256.")] = 64,
    context: Annotated[int, typer.Option(help="Number of context frames of ivideogpt.", min=1)] = 2,
    actions: Annotated[
        int | None, typer.Option(help="Numbers per action of ivideogpt. [default: no actions]", min=1)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Weight format. [default: bfloat16 or float32, by family]")] = None,
    size: Annotated[str, typer.Option(help="Size of the cosmos model: 4b, 5b, 12b or 13b.")] = "4b",
    debug: Debug = False,
) -> None:
    """Write a checkpoint with random weights in the format and with the widths of a released model."""
    from fastcar_cli.models.checkpoint import DTYPES
    from fastcar_lab.dummy import cosmos, ivideogpt, rlvr, vila_u

    one_of("--format", format_, ("vila-u", "ivideogpt", "cosmos", "rlvr"))
    one_of("--dtype", dtype, DTYPES)
    if format_ != "ivideogpt":
        refuse(ctx, ("medium", "pixels", "context", "actions"), f"with --format {format_}", "leave it out")
    if format_ != "cosmos":
        refuse(ctx, ("size",), f"with --format {format_}", "leave it out")
    if format_ == "cosmos":
        refuse(ctx, ("shards",), "with --format cosmos", "leave it out")
        one_of("--size", size, cosmos.SIZES)
        dtype, shape = dtype or "bfloat16", cosmos.shape_of(size)
        layers = layers or shape.decoder.layers
        model = cosmos.write(folder, replace(shape, decoder=replace(shape.decoder, layers=layers)), DTYPES[dtype])
        typer.echo(f"{model}: {layers} layers of full width in {dtype}, random weights, its tokenizer beside it")
        return
    if format_ == "vila-u":
        dtype, layers = dtype or "bfloat16", layers or 2
        vila_u.write(folder, layers=layers, dtype=DTYPES[dtype], shards=shards)
        typer.echo(f"{folder}: {layers} layers of full width in {dtype}, random weights")
        return
    refuse(ctx, ("layers", "shards"), f"with --format {format_}", "leave it out")
    dtype = dtype or "float32"
    if format_ == "rlvr":
        for kind in rlvr.KINDS:
            model = rlvr.write(folder, rlvr.shape_of(kind), DTYPES[dtype])
            typer.echo(f"{model}: random weights in {dtype}, its tokenizer beside it")
        return
    one_of("--pixels", str(pixels), [str(side) for side in ivideogpt.PIXELS])
    spec = ivideogpt.shape_of(pixels, medium=medium)
    spec = replace(spec, tokenizer=replace(spec.tokenizer, context=context), actions=actions or 0)
    ivideogpt.write(folder, spec, DTYPES[dtype])
    typer.echo(f"{folder}: random weights in {dtype}")


def store(
    model: Annotated[str, typer.Argument(help="Name or folder of the model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    base: Annotated[
        str | None, typer.Option(help="Model folder beside the output; skip tensors that equal the ones in it.")
    ] = None,
    fine: Annotated[
        list[str] | None, typer.Option(help="Name prefix of tensors to store in 12 bits; repeat for more.")
    ] = None,
    whole: Annotated[list[str] | None, typer.Option(help="Name prefix of float16 tensors; repeat for more.")] = None,
    debug: Debug = False,
) -> None:
    """Write a copy of a model folder with 8-bit weights, in the format of the bundled models."""
    from fastcar_lab import storage

    before, after = storage.store(model, output, base, fine or (), whole or ())
    typer.echo(f"{output}: {after:,} bytes, before {before:,}")


def text_embedding(
    text: Annotated[str, typer.Argument(help="What the video shows.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File (.npy) to write.")],
    encoder: Annotated[str, typer.Option(help="T5 encoder of transformers: a name or a folder.")] = "google-t5/t5-11b",
    debug: Debug = False,
) -> None:
    """Encode a text with T5, and write the file that `generate --text-embedding` reads."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, T5EncoderModel

    try:
        ids = AutoTokenizer.from_pretrained(encoder)(text, return_tensors="pt", truncation=True, max_length=512)
        model = T5EncoderModel.from_pretrained(encoder)
    except (OSError, ValueError) as e:
        raise RequestError(str(e).partition("\n")[0], key="encoder", value=encoder) from None
    with torch.inference_mode():
        vectors = model(**ids).last_hidden_state[0].float().numpy()
    np.save(output, vectors)
    typer.echo(f"{output}: {len(vectors)} vectors of {vectors.shape[1]}")


def conversion_error(
    model: Annotated[str, typer.Argument(help="Model; in float32 it is the reference.")],
    folders: Annotated[list[str] | None, typer.Argument(help="Folders of converted copies of the model.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Prompt; repeat it for more. [default: two prompts]")] = None,
    fpga: Annotated[
        list[str] | None, typer.Option(help="Also test an accelerator (preset or YAML); repeat it.")
    ] = None,
    frames: Annotated[int, typer.Option(help="Number of frames to decode.", min=1)] = 2,
    debug: Debug = False,
) -> None:
    """Compare hidden states, logits and replay of each weight format with those in float32; print lines of JSON."""
    from fastcar_lab.conversion_error import PROMPTS, compare

    for line in compare(model, folders or (), prompt or PROMPTS, frames, fpga or ()):
        typer.echo(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}))
