"""Prompts to measure models with: captions or clips never trained on where the model draws a world of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab import worlds
from fastcar_lab.worlds import world_of

ANY = (
    "a red ball rolling to the right on the grass",
    "a dog running along a beach",
    "waves breaking on a rocky shore",
    "a car driving through a city at night",
    "a candle burning on a table",
    "a horse galloping across a field",
    "clouds moving over a mountain",
    "a person walking in the snow",
    "a boat sailing on a calm lake",
    "leaves falling from a tree",
    "a train passing a bridge",
    "fish swimming in an aquarium",
    "a cat stretching on a sofa",
    "rain falling on a street",
    "a bird flying over the sea",
    "fireworks in the night sky",
    "a dancer turning on a stage",
    "smoke rising from a chimney",
    "a river running through a forest",
    "an old man reading a newspaper",
    "a skier going down a slope",
    "bees around a flower",
    "a windmill turning in the wind",
    "a child blowing soap bubbles",
    "a helicopter landing on a roof",
    "the moon rising over a desert",
    "a cook cutting vegetables",
    "a bicycle race in the mountains",
    "a kite flying over a field",
    "a waterfall in the jungle",
    "a turtle swimming over a reef",
    "traffic crossing a bridge at dusk",
)
"""For models that read any text."""
POOL, BALANCED_POOL = 128, 256
"""Captions drawn; the first of them are taken, so that more prompts begin with the same ones. Some kinds are rare."""


def prompts_for(pipe: VideoPipeline, count: int, seed: int = 0, *, balanced: bool = False) -> tuple[str, ...]:
    """Different prompts that the model understands; `balanced`: of each kind of scene in turn. Raises RequestError
    where there are not so many.
    """
    world = world_of(pipe.model.tokenizer, pipe.height, pipe.width)
    pool = BALANCED_POOL if balanced else POOL
    drawn = dict.fromkeys(ANY if world is None else world.unseen_captions(pool, seed), 0)
    if balanced:
        turns: Counter[str] = Counter()
        for prompt, kind in kinds_of(pipe, drawn).items():
            drawn[prompt] = turns[kind]
            turns[kind] += 1
        drawn = dict(sorted(drawn.items(), key=lambda item: item[1]))
    if len(drawn) < count:
        raise RequestError(
            f"there are {len(drawn)} of our own", key="prompts", value=count, hint=("add yours: ", Key("prompts_file"))
        )
    return tuple(drawn)[:count]


def prompts_or_clips(pipe: VideoPipeline, count: int) -> Sequence[Prompt]:
    """`prompts_for` a model; for one that actions steer, the clips that `fastcar lab clips` writes, with their keys."""
    if isinstance(pipe.spec, SteeredSpec):
        return [clip for _, clip in worlds.world("table-actions").held_out(count, seed=1)]
    return prompts_for(pipe, count)


def kinds_of(pipe: VideoPipeline, prompts: Iterable[str]) -> dict[str, str]:
    """The kind of scene that each prompt describes, as the model's world has them; "any" where it is none of ours."""
    world = world_of(pipe.model.tokenizer, pipe.height, pipe.width)
    return {p: "any" if world is None else world.kind(pipe.model.tokenizer.read(p).tokens) for p in prompts}
