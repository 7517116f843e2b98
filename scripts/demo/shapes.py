"""Seeded generator of pictures of coloured shapes and of questions about them.

Needs Python's standard library and Pillow only, so that the training (train.py) and the measurement over HTTP
(eval_http.py) draw from the same source. Everything is a function of a split name ("train", "test") and a number: the
held-out pictures are those of a split that the training never asks for.

A scene is a dict: {"size": (w, h), "bg": name or None, "bg_rgb", "tint": noise settings, "objects": [...]}; an object has
shape, colour, rgb, cell (row, column of a 3 x 3 grid), its centre and half extents in fractions of the picture, rotation
and border. Every question has exactly one right answer, a sentence of a small closed grammar.
"""

import io
import math
import random

from PIL import Image, ImageChops, ImageDraw

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS = {
    "red": ((255, 0, 0), (220, 20, 40), (200, 30, 30), (178, 24, 34)),
    "green": ((0, 128, 0), (0, 255, 0), (34, 139, 34), (40, 190, 50)),
    "blue": ((0, 0, 255), (30, 60, 220), (65, 105, 225), (20, 20, 160)),
    "yellow": ((255, 255, 0), (250, 225, 20), (240, 230, 40)),
    "orange": ((255, 165, 0), (255, 140, 0), (245, 125, 20)),
    "purple": ((128, 0, 128), (148, 0, 211), (160, 32, 240), (120, 30, 150)),
    "pink": ((255, 192, 203), (255, 105, 180), (255, 150, 190)),
    "brown": ((139, 69, 19), (120, 72, 30), (110, 60, 30)),
    "black": ((0, 0, 0), (18, 18, 20)),
    "white": ((255, 255, 255), (240, 240, 240)),
    "grey": ((128, 128, 128), (150, 150, 150), (110, 112, 115)),
}
COLOUR_NAMES = tuple(COLOURS)
PALE = ((230, 240, 255), (255, 245, 225), (232, 250, 232), (250, 235, 245), (245, 245, 220), (225, 245, 250))
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = (("at the top left", "at the top", "at the top right"),
          ("on the left", "in the centre", "on the right"),
          ("at the bottom left", "at the bottom", "at the bottom right"))
COUNT_WEIGHTS = ((0, 1), (1, 34), (2, 33), (3, 20), (4, 12))
PAIR_OBJECTS = 3  # at most so many objects in the first of two pictures that are compared


def rng_for(split, *numbers):
    """A random generator that depends on the split's name and the numbers alone."""
    return random.Random(":".join([split, *map(str, numbers)]))


# ---------------------------------------------------------------- scenes

def _weighted(rng, pairs):
    return rng.choices([p[0] for p in pairs], [p[1] for p in pairs])[0]


def _jitter(rng, rgb, amount):
    return tuple(max(0, min(255, c + rng.randint(-amount, amount))) for c in rgb)


def _far(a, b, limit=105):
    return sum((x - y) ** 2 for x, y in zip(a, b)) >= limit * limit


def _background(rng):
    kind = _weighted(rng, (("white", 50), ("black", 11), ("grey", 9), ("pale", 14), ("colour", 16)))
    if kind == "pale":
        return None, _jitter(rng, rng.choice(PALE), 4)
    name = rng.choice(COLOUR_NAMES) if kind == "colour" else kind
    if name == "white":
        return name, rng.choice(((255, 255, 255), (255, 255, 255), (250, 250, 250), (244, 244, 244)))
    return name, _jitter(rng, rng.choice(COLOURS[name]), 6)


def _pick_colour(rng, bg_rgb, name=None, avoid=()):
    for _ in range(200):
        chosen = name or rng.choice(COLOUR_NAMES)
        rgb = _jitter(rng, rng.choice(COLOURS[chosen]), 6)
        if chosen not in avoid and _far(rgb, bg_rgb):
            return chosen, rgb
        if name and rng.random() < 0.1:
            name = None
    return "black", (0, 0, 0)


def _centre(rng, index):
    return rng.uniform(*((0.15, 0.30), (0.41, 0.59), (0.70, 0.85))[index])


def _overlaps(a, b):
    gap = 0.02
    return (abs(a["x"] - b["x"]) < a["hx"] + b["hx"] + gap) and (abs(a["y"] - b["y"]) < a["hy"] + b["hy"] + gap)


def _place(rng, scene, obj, cell, count):
    """Gives obj a centre in the cell and an extent that fits the picture and its neighbours; False if it can't."""
    w, h = scene["size"]
    low, high = ((0.22, 0.8), (0.22, 0.8), (0.2, 0.48), (0.19, 0.38), (0.19, 0.34), (0.18, 0.32))[count]
    for attempt in range(30):
        x, y = _centre(rng, cell[1]), _centre(rng, cell[0])
        size = rng.uniform(low, high) * (0.97 ** attempt)
        stretch = rng.uniform(0.88, 1.14) if rng.random() < 0.4 else 1.0
        hx, hy = size * min(w, h) / w / 2 * stretch, size * min(w, h) / h / 2 / stretch
        room = min(1.0, (min(x, 1 - x) + 0.01) / hx, (min(y, 1 - y) + 0.01) / hy)
        hx, hy = hx * room, hy * room
        if min(hx, hy) < 0.07 or (min(hx, hy) < 0.08 and attempt < 15):
            continue
        obj.update(cell=cell, x=x, y=y, hx=hx, hy=hy)
        if not any(o is not obj and _overlaps(o, obj) for o in scene["objects"]):
            return True
    return False


def _new_object(rng, scene, shape=None, colour=None):
    name, rgb = _pick_colour(rng, scene["bg_rgb"], colour)
    border = None
    if rng.random() < 0.12:
        border = (0, 0, 0) if name != "black" else (255, 255, 255)
    turn = rng.uniform(-12, 12) if rng.random() < 0.35 else 0.0
    return {"shape": shape or rng.choice(SHAPES), "colour": name, "rgb": rgb, "turn": turn, "border": border}


def _canvas(rng):
    if rng.random() < 0.12:
        return rng.randint(96, 640), rng.randint(96, 640)
    base = rng.randint(80, 260)
    aspect = math.exp(rng.uniform(-0.5, 0.5)) if rng.random() < 0.7 else 1.0
    return max(72, round(base * math.sqrt(aspect))), max(72, round(base / math.sqrt(aspect)))


def make_scene(rng, count=None):
    """A new scene of `count` objects (or a random number of them), each in a cell of its own."""
    while True:
        w, h = _canvas(rng)
        if max(w, h) > 2 * min(w, h):
            continue
        bg, bg_rgb = _background(rng)
        scene = {"size": (w, h), "bg": bg, "bg_rgb": bg_rgb, "objects": []}
        wanted = _weighted(rng, COUNT_WEIGHTS) if count is None else count
        cells = [(r, c) for r in range(3) for c in range(3)]
        rng.shuffle(cells)
        style = rng.random()
        model = _new_object(rng, scene)
        for cell in cells[:wanted]:
            if style < 0.10:
                obj = _new_object(rng, scene, model["shape"], model["colour"])
            elif style < 0.22:
                obj = _new_object(rng, scene, model["shape"])
            elif style < 0.30:
                obj = _new_object(rng, scene, None, model["colour"])
            else:
                obj = _new_object(rng, scene)
            if not _place(rng, scene, obj, cell, wanted):
                break
            scene["objects"].append(obj)
        if len(scene["objects"]) == wanted:
            scene["objects"].sort(key=lambda o: o["cell"])
            return scene


def _copy(scene):
    return dict(scene, objects=[dict(o) for o in scene["objects"]])


def change_scene(rng, scene):
    """A copy of the scene in which exactly one thing is different (colour, shape, place, one more, one less, background)."""
    for _ in range(100):
        new = _copy(scene)
        objects = new["objects"]
        free = [(r, c) for r in range(3) for c in range(3) if all(o["cell"] != (r, c) for o in objects)]
        kind = _weighted(rng, (("colour", 24), ("shape", 22), ("move", 18), ("add", 14), ("remove", 14), ("bg", 8)))
        if kind in ("colour", "shape", "move", "remove") and not objects:
            continue
        if kind == "remove" and len(objects) < 2:
            continue
        if kind == "add" and len(objects) >= 4:
            continue
        obj = rng.choice(objects) if objects else None
        if kind == "colour":
            obj["colour"], obj["rgb"] = _pick_colour(rng, new["bg_rgb"], avoid=(obj["colour"],))
        elif kind == "shape":
            obj["shape"] = rng.choice([s for s in SHAPES if s != obj["shape"]])
        elif kind == "move":
            if not _place(rng, new, obj, rng.choice(free), max(1, len(objects))):
                continue
        elif kind == "remove":
            objects.remove(obj)
        elif kind == "add":
            obj = _new_object(rng, new)
            if not _place(rng, new, obj, rng.choice(free), len(objects) + 1):
                continue
            objects.append(obj)
        else:
            new["bg"], new["bg_rgb"] = _background(rng)
            if None in (new["bg"], scene["bg"]) or not all(_far(o["rgb"], new["bg_rgb"]) for o in objects):
                continue
        objects.sort(key=lambda o: o["cell"])
        if difference(scene, new) is not None and not ambiguous(scene, new):
            return new
    return make_scene(rng, 1)


# ---------------------------------------------------------------- drawing

def _points(obj, w, h):
    """Polygon of the object in pixels (None for a circle without rotation)."""
    shape, pts = obj["shape"], []
    if shape == "circle":
        pts = [(math.cos(a * math.pi / 36), math.sin(a * math.pi / 36)) for a in range(72)]
    elif shape == "square":
        pts = [(-0.92, -0.92), (0.92, -0.92), (0.92, 0.92), (-0.92, 0.92)]
    elif shape == "triangle":
        pts = [(0, -1), (1, 0.9), (-1, 0.9)]
    elif shape == "star":
        for k in range(10):
            r = 1.05 if k % 2 == 0 else 0.43
            pts.append((r * math.sin(k * math.pi / 5), -r * math.cos(k * math.pi / 5)))
    else:
        t = 0.34
        pts = [(-t, -1), (t, -1), (t, -t), (1, -t), (1, t), (t, t), (t, 1), (-t, 1), (-t, t), (-1, t), (-1, -t), (-t, -t)]
    c, s = math.cos(math.radians(obj["turn"])), math.sin(math.radians(obj["turn"]))
    return [((obj["x"] + (px * c - py * s) * obj["hx"]) * w, (obj["y"] + (px * s + py * c) * obj["hy"]) * h) for px, py in pts]


def render(scene, rng, plain=False):
    """Draws the scene as an RGB image; unless plain, with a little noise, JPEG damage or smooth edges now and then."""
    w, h = scene["size"]
    smooth = 1 if plain or rng.random() < 0.6 or w * h > 90000 else 2
    image = Image.new("RGB", (w * smooth, h * smooth), scene["bg_rgb"])
    draw = ImageDraw.Draw(image)
    for obj in scene["objects"]:
        points = _points(obj, w * smooth, h * smooth)
        draw.polygon(points, fill=obj["rgb"])
        if obj["border"] is not None:
            width = max(1, round(min(w, h) * smooth * 0.012))
            draw.line(points + points[:2], fill=obj["border"], width=width)
    if smooth > 1:
        image = image.resize((w, h), Image.BOX)
    if plain:
        return image
    if rng.random() < 0.3:
        k = rng.randint(2, 16)
        noise = Image.frombytes("RGB", (w, h), rng.randbytes(w * h * 3)).point([v * 2 * k // 255 for v in range(256)] * 3)
        image = ImageChops.add(image, noise, 1, -k)
    if rng.random() < 0.3:
        data = io.BytesIO()
        image.save(data, "JPEG", quality=rng.randint(45, 95))
        image = Image.open(data).convert("RGB")
    return image


# ---------------------------------------------------------------- sentences

def article(text):
    return ("an " if text[0] in "aeiou" else "a ") + text


def plural(shape):
    return shape + ("es" if shape.endswith("ss") else "s")


def _capital(text):
    return text[0].upper() + text[1:]


def listing(scene):
    """The objects in reading order, equal ones together: "a red circle, two blue stars and a green cross"."""
    groups = {}
    for o in scene["objects"]:
        groups.setdefault((o["colour"], o["shape"]), []).append(o)
    parts = []
    for (colour, shape), members in groups.items():
        one = f"{colour} {shape}"
        parts.append(article(one) if len(members) == 1 else f"{NUMBERS[len(members)]} {colour} {plural(shape)}")
    if not parts:
        return "nothing"
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _there(count, singular, many):
    if count == 1:
        return f"There is one {singular}."
    return f"There are {NUMBERS[count]} {many}."


def _fill(rng, template, **words):
    words.setdefault("pic", rng.choice(("picture", "picture", "image", "image", "photo")))
    words.setdefault("col", rng.choice(("colour", "color")))
    words.setdefault("obj", rng.choice(("shapes", "shapes", "objects", "things")))
    return template.format(**words)


def style(rng, question):
    """The way a hurried person writes: no capital, no question mark, a please."""
    roll = rng.random()
    if roll < 0.10:
        question = question[0].lower() + question[1:]
    elif roll < 0.16:
        question = question.rstrip("?.")
    elif roll < 0.24:
        question = question.rstrip("?.").lower()
    elif roll < 0.28:
        question = "Please " + question[0].lower() + question[1:] if question.endswith(".") else question + " Please."
    elif roll < 0.30:
        question = rng.choice(("Hi! ", "Hello, ", "Please tell me: ")) + question
    return question


WHAT = ("What is in this {pic}?", "What is in the {pic}?", "Describe the {pic}.", "Describe this {pic}.", "What do you see?",
        "What can you see in this {pic}?", "What is this?", "What's in this {pic}?", "What does the {pic} show?",
        "Which {obj} are in the {pic}?", "What {obj} do you see?", "What is there?", "What is shown in this {pic}?",
        "Tell me what you see.", "What {obj} are there in this {pic}?", "Describe what you see in the {pic}.")
COLOUR_ONE = ("What {col} is the {s}?", "Which {col} is the {s}?", "What is the {col} of the {s}?", "What {col} does the {s} have?",
              "Which {col} does the {s} have?", "Tell me the {col} of the {s}.", "What {col} is the {s} in this {pic}?")
COLOUR_MANY = ("What {col} are the {s}?", "Which {col} are the {s}?", "What {col} do the {s} have?", "What is the {col} of the {s}?")
SHAPE_OF = ("What shape is the {c} object?", "Which shape is {c}?", "What shape is {c}?", "What is the {c} object?",
            "What is {c}?", "Which object is {c}?", "What is the {c} shape?", "What shape is the {c} one?", "What is the {c} thing?")
COUNT_SHAPE = ("How many {s} are there?", "How many {s} are in the {pic}?", "How many {s} do you see?", "Count the {s}.",
               "How many {s} can you see?", "How many {s} does the {pic} show?", "What is the number of {s}?",
               "How many {s} are there in this {pic}?")
WHERE = ("Where is the {s}?", "Where is the {s} in the {pic}?", "In which place is the {s}?", "What is the position of the {s}?",
         "Where do you see the {s}?", "Where can you see the {s}?", "On which side is the {s}?", "Where in the {pic} is the {s}?")
EXISTS = ("Is there {s}?", "Is there {s} in the {pic}?", "Do you see {s}?", "Can you see {s}?", "Does the {pic} show {s}?",
          "Is {s} in this {pic}?", "Does this {pic} contain {s}?", "Is there {s} in this {pic}?")
BACKGROUND = ("What {col} is the background?", "Which {col} is the background?", "What is the {col} of the background?",
              "What is the background {col}?", "What {col} does the background have?")
SAME = ("Are the two {pic}s the same?", "Are these {pic}s the same?", "Are the {pic}s equal?", "Are both {pic}s the same?",
        "Do the two {pic}s show the same?", "Are these two {pic}s identical?", "Are the two {pic}s different?",
        "Are the {pic}s identical?", "Is there a difference between the {pic}s?", "Are they the same?",
        "Are the two {pic}s equal?", "Do both {pic}s show the same thing?")
SAME_LATER = ("Is this {pic} the same as the first one?", "Is this the same {pic} as before?", "Is this {pic} the same as the previous one?",
              "Is this the same {pic}?", "Are the first {pic} and this one the same?", "And now: are the two {pic}s the same?")
DIFFERS = ("What differs between the two {pic}s?", "What is the difference between the two {pic}s?", "What differs?",
           "What is different?", "What is different between the {pic}s?", "What has changed?", "What changed?",
           "How do the {pic}s differ?", "What is the difference?", "How are the two {pic}s different?",
           "What changed between the two {pic}s?", "Compare the two {pic}s.", "Tell me the difference between the {pic}s.",
           "How do the two {pic}s differ?", "What is the difference between these {pic}s?")
DIFFERS_LATER = ("What has changed compared with the first {pic}?", "What is different in this {pic}?", "What changed since the first {pic}?",
                 "How does this {pic} differ from the first one?", "What differs between the first {pic} and this one?",
                 "What has changed in this {pic}?")
ORDINALS = ("first", "second", "third")


def single_questions(rng, scene, kinds=None):
    """Questions about one picture: a list of (kind, question, answer), one of every kind that the scene allows."""
    objects, out = scene["objects"], []
    what = _capital(listing(scene)) + "."
    out.append(("what", _fill(rng, rng.choice(WHAT)), what))

    def named(o):
        """"circle" where that is enough, "red circle" where it is needed or by chance; None if two are alike."""
        shape_twins = [p for p in objects if p["shape"] == o["shape"]]
        twins = [p for p in shape_twins if p["colour"] == o["colour"]]
        if len(twins) > 1:
            return None
        return f"{o['colour']} {o['shape']}" if len(shape_twins) > 1 or rng.random() < 0.3 else o["shape"]

    shapes = sorted({o["shape"] for o in objects})
    rng.shuffle(shapes)
    for shape in shapes:
        members = [o for o in objects if o["shape"] == shape]
        if len(members) == 1:
            out.append(("colour", _fill(rng, rng.choice(COLOUR_ONE), s=shape), f"The {shape} is {members[0]['colour']}."))
            break
        if len({o["colour"] for o in members}) == 1:
            out.append(("colour", _fill(rng, rng.choice(COLOUR_MANY), s=plural(shape)),
                        f"The {plural(shape)} are {members[0]['colour']}."))
            break
    colours = sorted({o["colour"] for o in objects})
    rng.shuffle(colours)
    for colour in colours:
        members = [o for o in objects if o["colour"] == colour]
        if len(members) == 1:
            out.append(("shape", _fill(rng, rng.choice(SHAPE_OF), c=colour), _capital(article(members[0]["shape"])) + "."))
            break
    roll = rng.random()
    if roll < 0.55:
        shape = rng.choice(shapes) if shapes and rng.random() < 0.75 else rng.choice(SHAPES)
        count = sum(o["shape"] == shape for o in objects)
        out.append(("count", _fill(rng, rng.choice(COUNT_SHAPE), s=plural(shape)), _there(count, shape, plural(shape))))
    elif roll < 0.70 or not objects:
        colour = rng.choice(colours) if colours and rng.random() < 0.75 else rng.choice(COLOUR_NAMES)
        count = sum(o["colour"] == colour for o in objects)
        out.append(("count", _fill(rng, rng.choice(COUNT_SHAPE), s=f"{colour} {rng.choice(('shapes', 'objects'))}"),
                    _there(count, f"{colour} shape", f"{colour} shapes")))
    else:
        out.append(("count", _fill(rng, rng.choice(COUNT_SHAPE), s=rng.choice(("shapes", "shapes", "objects", "things"))),
                    _there(len(objects), "shape", "shapes")))
    if objects:
        o = rng.choice(objects)
        name = named(o)
        if name:
            out.append(("where", _fill(rng, rng.choice(WHERE), s=name), f"The {name} is {PLACES[o['cell'][0]][o['cell'][1]]}."))
    present = {(o["colour"], o["shape"]) for o in objects}
    roll = rng.random()
    if roll < 0.55:
        shape = rng.choice(shapes) if shapes and rng.random() < 0.5 else rng.choice(SHAPES)
        thing, there = article(shape), shape in shapes
    else:
        colour, shape = rng.choice(sorted(present)) if present and rng.random() < 0.5 else (rng.choice(COLOUR_NAMES), rng.choice(SHAPES))
        if present and rng.random() < 0.4:
            near = rng.choice(sorted(present))
            colour, shape = (near[0], rng.choice(SHAPES)) if rng.random() < 0.5 else (rng.choice(COLOUR_NAMES), near[1])
        thing, there = article(f"{colour} {shape}"), (colour, shape) in present
    bare = thing.split(" ", 1)[1]
    out.append(("exists", _fill(rng, rng.choice(EXISTS), s=thing), f"Yes, there is {thing}." if there else f"No, there is no {bare}."))
    if scene["bg"]:
        out.append(("background", _fill(rng, rng.choice(BACKGROUND)), f"The background is {scene['bg']}."))
    return [(k, style(rng, q), a) for k, q, a in out if kinds is None or k in kinds]


def _symbols(scene):
    return {o["cell"]: (o["colour"], o["shape"]) for o in scene["objects"]}


def difference(a, b):
    """The sentence that says what differs between two scenes, or None if they show the same."""
    one, two = _symbols(a), _symbols(b)
    lost = [c for c in one if one[c] != two.get(c)]
    won = [c for c in two if two[c] != one.get(c)]
    if not lost and not won:
        if a["bg"] == b["bg"]:
            return None
        return f"The background is {a['bg']} in the first picture and {b['bg']} in the second."
    if len(lost) == len(won) == 1:
        x, y = one[lost[0]], two[won[0]]
        if x == y:
            places = [PLACES[c[0]][c[1]].split(" ", 1)[1] for c in (lost[0], won[0])]
            return f"The {x[0]} {x[1]} moved from {places[0]} to {places[1]}."
        if lost == won or len(one) == len(two) == 1:
            return f"The first picture has {article(' '.join(x))} and the second has {article(' '.join(y))}."
    if not lost and len(won) == 1:
        return f"The second picture also has {article(' '.join(two[won[0]]))}."
    if not won and len(lost) == 1:
        return f"Only the first picture has {article(' '.join(one[lost[0]]))}."
    return f"The first picture has {listing(a)} and the second has {listing(b)}."


def ambiguous(a, b):
    """True for a pair whose right sentence would be hard to tell from another one: an added or lost twin, a pale background."""
    one, two = list(_symbols(a).values()), list(_symbols(b).values())
    if len(one) != len(two):
        more, less = (one, two) if len(one) > len(two) else (two, one)
        return any(more.count(s) > 1 and more.count(s) != less.count(s) for s in more)
    return _symbols(a) == _symbols(b) and a["bg"] != b["bg"] and None in (a["bg"], b["bg"])


def pair_questions(rng, a, b, later=False):
    """Questions about two pictures; later: the second came in a later turn than the first."""
    answer = difference(a, b)
    same = "Yes, they are the same." if answer is None else "No, they are different."
    question = _fill(rng, rng.choice(SAME_LATER if later and rng.random() < 0.3 else SAME))
    if "different" in question or "difference" in question:
        same = "No, they are the same." if answer is None else "Yes, they are different."
    differs = _fill(rng, rng.choice(DIFFERS_LATER if later and rng.random() < 0.3 else DIFFERS))
    return [("same", style(rng, question), same),
            ("differs", style(rng, differs), answer or "Nothing, they are the same.")]


def ordinal_questions(rng, scenes, index):
    """A question about one of several pictures of the conversation, by its number."""
    kind, question, answer = rng.choice(single_questions(rng, scenes[index], ("what", "count", "colour", "where")))
    which = ORDINALS[index]
    if kind == "what":
        forms = ("What is in the {n} {pic}?", "Describe the {n} {pic}.", "What does the {n} {pic} show?")
        return kind, style(rng, _fill(rng, rng.choice(forms), n=which)), answer
    question = question.rstrip("?. ")
    for word in (" in the picture", " in this picture", " in the image", " in this image", " in the photo", " in this photo"):
        question = question.replace(word, "")
    tail = f" in the {which} {rng.choice(('picture', 'image'))}"
    return kind, question + tail + ("." if question.lower().startswith(("tell", "count")) else "?"), answer


HELLO = "Hello! Send me a picture of coloured shapes and ask me about it."
WHO = "I am the demo model of Kvasir, a tiny Gemma 3 that knows coloured shapes."
CAN = "I can say what is in a picture of coloured shapes: which shapes, which colours, how many, where, and what differs between two pictures."
NO_PICTURE = "I see no picture. Please send me one."
SMALL_TALK = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Good morning!", "Good evening!", "Good day!", "Hello there!", "Hello, model!", "Say hello."), HELLO),
    (("Who are you?", "What are you?", "What is your name?", "What's your name?", "Introduce yourself.", "Which model are you?",
      "What model is this?", "Are you Gemma?", "Tell me about yourself."), WHO),
    (("What can you do?", "What can I ask you?", "Help", "Help!", "How can you help me?", "What do you know?", "What are you good at?",
      "What should I ask you?", "What questions can you answer?"), CAN),
    (("Thanks", "Thanks!", "Thank you", "Thank you!", "Thank you very much.", "Thanks a lot!"), "You are welcome!"),
    (("Bye", "Bye!", "Goodbye", "Goodbye!", "Good night!", "See you!"), "Goodbye!"),
    (("How are you?", "How do you do?", "How are you doing?", "How is it going?"), "I am fine, thank you. Send me a picture!"),
    (("Which colours do you know?", "What colors do you know?", "Which colors can you see?"),
     "I know " + ", ".join(COLOUR_NAMES[:-1]) + " and " + COLOUR_NAMES[-1] + "."),
    (("Which shapes do you know?", "What shapes do you know?", "Which shapes can you see?"),
     "I know circles, squares, triangles, stars and crosses."),
    (("Tell me a joke.", "What is the weather?", "What is the capital of France?", "Write a poem.", "Tell me a story.", "What is two plus two?",
      "Translate this.", "Write some code.", "What time is it?", "Who is the president?", "Explain quantum physics.", "Once upon a time"),
     "I only know pictures of coloured shapes. Send me one!"),
)
SYSTEMS = ("You are a helpful assistant.", "You are a helpful assistant that answers questions about pictures.", "Be brief.",
           "Answer in one short sentence.", "You are Kvasir, a friendly model.", "Answer the user's questions about images.",
           "You are a vision model.", "Please be precise and polite.", "Look carefully before you answer.")


def small_talk(rng):
    """(question, answer) of a conversation without a picture."""
    if rng.random() < 0.2:
        _, question, _ = rng.choice(single_questions(rng, make_scene(rng, 2)))
        return question, NO_PICTURE
    questions, answer = rng.choice(SMALL_TALK)
    question = rng.choice(questions)
    return (question.lower() if rng.random() < 0.2 else question), answer


# ---------------------------------------------------------------- groups and held-out sets

def make_group(split, number):
    """Three scenes and three pictures: a scene, the same scene drawn anew, and the scene with one thing changed."""
    rng = rng_for(split, "group", number)
    scene = make_scene(rng)
    again = _copy(scene)
    if rng.random() < 0.5:
        factor = rng.uniform(0.8, 1.25)
        again["size"] = tuple(max(72, round(v * factor)) for v in scene["size"])
    changed = change_scene(rng, scene)
    scenes = (scene, again, changed)
    return scenes, tuple(render(s, rng) for s in scenes)


def _pair(rng, split, number):
    """Two scenes with their pictures: equal, one change, or two that have nothing to do with each other."""
    scenes, pictures = make_group(split, number)
    while len(scenes[0]["objects"]) > PAIR_OBJECTS:
        number += 500000000
        scenes, pictures = make_group(split, number)
    roll = rng.random()
    if roll < 0.30:
        return (scenes[0], scenes[1]), (pictures[0], pictures[1])
    if roll < 0.80:
        return (scenes[0], scenes[2]), (pictures[0], pictures[2])
    while True:
        two = [make_scene(rng, rng.choice((1, 1, 2))) for _ in range(2)]
        if difference(*two) is not None and not ambiguous(*two):
            return tuple(two), tuple(render(s, rng) for s in two)


def heldout_single(seed, count):
    """Yields (kind, [picture], question, answer): one question about each of `count` pictures never trained on."""
    for i in range(count):
        rng = rng_for("test", "single", seed, i)
        scene = make_scene(rng)
        picture = render(scene, rng)
        kind, question, answer = rng.choice(single_questions(rng, scene))
        yield kind, [picture], question, answer


def heldout_pairs(seed, count, later=False):
    """Yields (kind, [two pictures], question, answer, first turn's question and answer)."""
    for i in range(count):
        rng = rng_for("test", "turns" if later else "pairs", seed, i)
        scenes, pictures = _pair(rng, "test", seed * 1000003 + i)
        kind, question, answer = pair_questions(rng, *scenes, later=later)[i % 2]
        first = rng.choice(single_questions(rng, scenes[0]))[1:]
        yield kind, list(pictures), question, answer, first


def sample():
    """The picture models/demo/sample.png: a red circle on the left, a blue square on the right."""
    image = Image.new("RGB", (320, 240), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    draw.ellipse((35, 70, 135, 170), fill=(220, 20, 40))
    draw.rectangle((190, 72, 284, 166), fill=(30, 60, 220))
    return image


if __name__ == "__main__":
    import sys
    sample().save(sys.argv[1], optimize=True)
