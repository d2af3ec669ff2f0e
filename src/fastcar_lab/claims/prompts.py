"""Prompts that claims are measured with: captions never trained on where the model draws a world of ours."""

from __future__ import annotations

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.pipeline import VideoPipeline
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
)
"""For models that read any text."""
POOL = 128
"""Captions drawn; the first of them are taken, so that more prompts begin with the same ones."""


def prompts_for(pipe: VideoPipeline, count: int, seed: int = 0) -> tuple[str, ...]:
    """Different prompts that the model understands. Raises RequestError where there are not so many."""
    world = world_of(pipe.model.tokenizer, pipe.height, pipe.width)
    drawn = ANY if world is None else world.unseen_captions(POOL, seed)
    found = tuple(dict.fromkeys(drawn))[:count]
    if len(found) < count:
        raise RequestError(
            f"there are {len(found)} of our own", key="prompts", value=count, hint=(Key("prompts_file"), " with yours")
        )
    return found
