"""The words of the world: what the bundled model's text tokenizer knows.

Every attribute value has one token and several ways to say it. Words that carry no attribute
("a", "moves", "across") are known and left out; anything else is unknown and reported.
"""

from __future__ import annotations

# Longest phrases win, so "down the street" is a road and not a motion.
PHRASES: dict[str, tuple[str, ...]] = {
    "ball": (
        "ball", "circle", "disc", "disk", "sphere", "marble", "orb", "round ball", "beach ball", "balls", "football",
        "basketball", "bubble",
    ),
    "box": (
        "box", "square", "cube", "crate", "block", "boxes", "cardboard box", "brick", "rectangle", "package",
    ),
    "triangle": (
        "triangle", "pyramid", "tent", "triangular shape", "three sided shape",
    ),
    "star": (
        "star", "starfish", "pentagram", "five pointed star",
    ),
    "car": (
        "car", "automobile", "truck", "vehicle", "taxi", "fastcar", "auto", "sedan", "race car", "racing car",
        "sports car", "jeep", "van", "toy car", "cars",
    ),
    "boat": (
        "boat", "ship", "sailboat", "sailing boat", "yacht", "vessel", "dinghy", "sail boat", "toy boat", "boats",
        "ferry",
    ),
    "red": (
        "red", "crimson", "scarlet", "ruby", "cherry", "dark red", "bright red", "light red",
    ),
    "orange": (
        "orange", "tangerine", "dark orange", "bright orange", "light orange",
    ),
    "yellow": (
        "yellow", "golden", "lemon", "gold", "dark yellow", "bright yellow", "light yellow",
    ),
    "green": (
        "green", "emerald", "dark green", "bright green", "light green", "lime",
    ),
    "blue": (
        "blue", "navy", "dark blue", "bright blue", "light blue", "sky blue", "cobalt", "royal blue",
    ),
    "purple": (
        "purple", "violet", "dark purple", "bright purple", "light purple", "indigo", "lavender", "lilac",
    ),
    "pink": (
        "pink", "dark pink", "rose", "bright pink", "light pink", "hot pink", "magenta", "rosy", "fuchsia",
    ),
    "small": (
        "small", "little", "tiny", "mini", "miniature", "wee", "compact", "petite", "small sized", "smallish",
    ),
    "big": (
        "big", "large", "huge", "giant", "massive", "enormous", "gigantic", "oversized", "great", "big sized",
        "large sized",
    ),
    "left": (
        "left", "leftward", "leftwards", "right to left", "from right to left", "from the right to the left",
        "to the left side", "westward", "toward the left", "leftwardly", "from right towards left",
    ),
    "right": (
        "right", "rightward", "rightwards", "left to right", "from left to right", "from the left to the right",
        "to the right side", "eastward", "toward the right", "from left towards right",
    ),
    "up": (
        "up", "upward", "upwards", "rises", "rising", "rise", "ascends", "ascending", "climbs", "climbing",
        "takes off", "ascend", "climb", "lifts", "lifting", "soars", "soaring", "skyward", "lifts off",
        "bottom to top", "from bottom to top", "from the bottom to the top", "floats up", "rises up", "rising up",
        "levitates", "levitating",
    ),
    "down": (
        "down", "downward", "downwards", "falls", "falling", "fall", "sinks", "sinking", "drops", "dropping",
        "descends", "descending", "descend", "drop", "plummets", "plunges", "dives", "diving", "lowers", "lowering",
        "top to bottom", "from top to bottom", "from the top to the bottom", "falls down", "falling down",
        "sinks down", "sinking down", "drops down", "dropping down", "tumbles", "tumbling",
    ),
    "still": (
        "still", "stays", "staying", "stands", "standing", "rests", "resting", "parked", "motionless", "stationary",
        "not moving", "does not move", "doesn't move", "without moving", "waits", "waiting", "sits", "sitting",
        "stays still", "stands still", "sits still", "stays in place", "frozen", "immobile", "unmoving", "idle",
        "idling", "at rest", "stopped", "static", "holds still", "holding still", "remains", "remains still",
        "remaining still", "keeps still", "stay", "stand", "sit", "rest", "wait", "in place", "standing there",
        "staying put", "stays put", "sitting still", "standing still", "staying still", "doing nothing",
        "does nothing", "without motion", "parks", "parking", "staying in place", "standing in place",
        "remains in place",
    ),
    "growing": (
        "growing", "grows", "grow", "expands", "expanding", "gets bigger", "getting bigger", "gets larger",
        "getting larger", "becomes bigger", "becoming bigger", "becomes larger", "bigger", "larger", "inflates",
        "inflating", "enlarges", "enlarging", "swells", "swelling", "increasing in size", "increases in size",
        "growing larger", "growing bigger", "grows larger", "grows bigger", "grows in size", "growing in size",
        "scales up", "scaling up", "expand", "growing up", "grows up", "gets big", "getting big", "blows up",
        "becoming larger", "inflate", "gets huge", "getting huge",
    ),
    "shrinking": (
        "shrinking", "shrinks", "shrink", "gets smaller", "getting smaller", "becomes smaller", "becoming smaller",
        "smaller", "deflates", "deflating", "contracts", "contracting", "dwindles", "dwindling", "diminishes",
        "diminishing", "decreasing in size", "decreases in size", "growing smaller", "grows smaller", "scales down",
        "scaling down", "shrinking down", "shrinks down", "shrinks in size", "shrinking in size", "gets small",
        "getting small", "gets tiny", "getting tiny", "gets tinier", "getting tinier", "tinier",
    ),
    "bouncing": (
        "bouncing", "bounces", "bounce", "hops", "hopping", "jumps", "jumping", "jump", "up and down",
        "bouncing up and down", "bounces up and down", "jumps up and down", "jumping up and down", "hops up and down",
        "hop", "springs", "springing", "bobs", "bobbing", "leaps", "leaping", "jumps up", "jumping up", "bounces up",
        "bouncing up", "bounces down", "bouncing down", "moves up and down", "moving up and down", "bouncy",
        "springing up and down", "bobbing up and down",
    ),
    "grass": (
        "grass", "lawn", "meadow", "field", "park", "grassland", "grassy", "grassy field", "grassy meadow", "turf",
        "pasture", "green field", "green grass", "green meadow", "green lawn", "garden", "countryside", "prairie",
        "fields",
    ),
    "sky": (
        "sky", "air", "blue sky", "clear sky", "skies", "blue skies", "light blue sky", "clear blue sky", "sunny sky",
    ),
    "sea": (
        "sea", "water", "ocean", "lake", "river", "waves", "blue sea", "blue water", "blue ocean", "blue lake",
        "seas", "pond", "pool", "wave", "bay", "harbor", "harbour", "sea water", "open sea", "seaside",
    ),
    "sand": (
        "sand", "beach", "desert", "dunes", "sandy", "sandy beach", "sandy ground", "sandy desert", "dune", "shore",
        "yellow sand", "sandbox", "sands", "golden sand", "down the beach", "up the beach",
    ),
    "night": (
        "night", "dark", "darkness", "space", "starry sky", "night sky", "starry night", "dark night", "midnight",
        "outer space", "under the stars", "starry", "nighttime", "dark sky", "dark night sky", "evening", "stars",
        "night time", "in the stars",
    ),
    "road": (
        "road", "street", "asphalt", "highway", "down the street", "down the road", "down a street", "down a road",
        "up the street", "up the road", "roads", "streets", "pavement", "tarmac", "avenue", "lane", "freeway",
        "motorway", "roadway", "gray road", "grey road", "asphalt road", "concrete", "down the highway",
        "up the highway", "parking lot", "racetrack",
    ),
}  # fmt: skip

FILLERS = frozenset(
    """
    a above across against ahead all along an and animation appearing appears are around as at away backdrop
    background beautiful becomes becoming before being bottom bright by calmly center centre clip color colored
    colour coloured continuously crosses crossing cruise cruises cruising cute direction draw drift drifting
    drifts drive drives driving edge fast flat flies float floating floats floor fly flying footage for frame from
    front generate gently gets getting glide glides gliding go goes going gradually ground hand happily has have
    having heading heads here i in into is it it's item its itself just light like looking make me middle motion
    move moved moves movie moving nice object of off on one only onto out over passes passing picture place plain
    please pretty quickly quietly races racing roll rolling rolls running runs rushes rushing sail sailing sails
    scene scenery screen see seen setting shape shaped shiny short showing shows side simple single size sized
    slide slides sliding slow slowly smoothly solid some speeding speeds steadily straight surface swimming swims
    that that's the there there's thing this through time to top toward towards traveling travelling travels under
    us very video want watch way which while with would you zipping zips zooming zooms
    """.split()
)
"""Known words that say nothing the model can draw; they get no token."""

SPECIALS = ("<pad>", "<bos>", "<vi_start>")
VOCABULARY: tuple[str, ...] = (*SPECIALS, *PHRASES)
"""Token strings by id: specials first, then one token for every attribute value."""
