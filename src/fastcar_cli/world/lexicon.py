"""The words of the world: what the bundled model's text tokenizer knows.

Every attribute value has one token and several ways to say it. Words that carry no attribute
("a", "moves", "across") are known and left out; anything else is unknown and reported.
"""

from __future__ import annotations

# Longest phrases win, so "down the street" is a road and not a motion.
PHRASES: dict[str, tuple[str, ...]] = {
    # shapes
    "ball": ("ball", "balls", "circle", "disc", "disk", "sphere", "marble"),
    "box": ("box", "square", "cube", "crate", "block"),
    "triangle": ("triangle", "pyramid", "tent"),
    "star": ("star",),
    "car": ("car", "automobile", "truck", "vehicle", "taxi", "fastcar"),
    "boat": ("boat", "ship", "sailboat", "sailing boat", "yacht"),
    # colours
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange",),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "blue": ("blue", "navy"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rose"),
    # sizes
    "small": ("small", "little", "tiny", "mini"),
    "big": ("big", "large", "huge", "giant"),
    # motions
    "left": ("left", "leftward", "leftwards", "right to left", "from right to left", "from the right to the left"),
    "right": ("right", "rightward", "rightwards", "left to right", "from left to right", "from the left to the right"),
    "up": ("up", "upward", "upwards", "rises", "rising", "rise", "ascends", "ascending", "climbs", "climbing", "takes off"),
    "down": ("down", "downward", "downwards", "falls", "falling", "fall", "sinks", "sinking", "drops", "dropping", "descends", "descending"),
    "still": (
        "still", "stays", "staying", "stands", "standing", "rests", "resting", "parked", "motionless", "stationary",
        "not moving", "does not move", "doesn't move", "without moving", "waits", "waiting", "sits", "sitting",
        "stays still", "stands still", "sits still", "stays in place", "frozen",
    ),
    "growing": (
        "growing", "grows", "grow", "expands", "expanding", "gets bigger", "getting bigger", "gets larger",
        "getting larger", "becomes bigger", "becoming bigger", "becomes larger", "bigger", "larger", "inflates", "inflating",
    ),
    "shrinking": (
        "shrinking", "shrinks", "shrink", "gets smaller", "getting smaller", "becomes smaller", "becoming smaller",
        "smaller", "deflates", "deflating",
    ),
    "bouncing": (
        "bouncing", "bounces", "bounce", "hops", "hopping", "jumps", "jumping", "jump", "up and down",
        "bouncing up and down", "bounces up and down", "jumps up and down", "jumping up and down", "hops up and down",
    ),
    # backgrounds
    "grass": ("grass", "lawn", "meadow", "field", "park", "grassland"),
    "sky": ("sky", "air"),
    "sea": ("sea", "water", "ocean", "lake", "river", "waves"),
    "sand": ("sand", "beach", "desert", "dunes", "sandy"),
    "night": ("night", "dark", "darkness", "space", "starry sky", "night sky", "starry night"),
    "road": ("road", "street", "asphalt", "highway", "down the street", "down the road", "down a street", "down a road", "up the street", "up the road"),
}  # fmt: skip

FILLERS = frozenset(
    """
    a an the this that one is are it its to of in on at by over above across along through into onto against
    before under with and while toward towards from for there some very slowly quickly gently fast slow moves
    moving move rolls rolling roll drives driving drive slides sliding slide goes going go travels travelling
    traveling heads heading flies flying fly floats floating float sails sailing sail drifts drifting drift glides
    gliding glide runs running speeds speeding shows showing video clip movie scene picture animation background
    front side place which being gets getting becomes becoming screen direction hand coloured colored color colour
    object thing sized looking away bright please draw make generate me us just only all time way straight ahead
    steadily
    """.split()
)
"""Known words that say nothing the model can draw; they get no token."""

SPECIALS = ("<pad>", "<bos>", "<vi_start>")
VOCABULARY: tuple[str, ...] = (*SPECIALS, *PHRASES)
"""Token strings by id: specials first, then one token for every attribute value."""
