"""Training data: a pool of drawn pictures, and batches of conversations about them as token trees.

A row is a tree: a common beginning (turn header, picture, perhaps earlier turns) and several branches, each one question with
its answer. A branch sees the beginning and itself, and its positions continue the beginning's, so that for the model every
branch is a conversation of its own while the picture's tokens are computed once. The attention rule is that of Gemma 3 in
transformers: causal or within the same picture, and in sliding layers less than `window` tokens back.
"""

import multiprocessing
import random

import torch
from torchvision.transforms.v2 import functional as tvf
from torchvision.transforms.v2 import InterpolationMode

import shapes

SOFT = "<image_soft_token>"


def to_pixels(picture, size):
    """uint8 [3, size, size] as the checkpoint's processor makes it before rescaling (torchvision, bilinear, antialias)."""
    tensor = tvf.pil_to_tensor(picture)
    return tvf.resize(tensor, [size, size], interpolation=InterpolationMode.BILINEAR, antialias=True)


def normalise(pixels):
    return (pixels.float() - 127.5) / 127.5


def _draw(job):
    torch.set_num_threads(1)
    first, last, size = job
    scenes, pixels = [], []
    for number in range(first, last):
        s, pictures = shapes.make_group("train", number)
        scenes.append(s)
        pixels.append(torch.stack([to_pixels(p, size) for p in pictures]))
    return scenes, torch.stack(pixels).numpy()


def draw_pool(groups, size, workers=2):
    """scenes: list of triples; pixels: uint8 [groups, 3 pictures, 3, size, size]. Equal for any number of workers."""
    jobs = [(i, min(i + 250, groups), size) for i in range(0, groups, 250)]
    scenes, pixels = [], torch.empty(groups, 3, 3, size, size, dtype=torch.uint8)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for s, p in pool.imap(_draw, jobs):
            pixels[len(scenes):len(scenes) + len(s)] = torch.from_numpy(p)
            scenes += s
    return scenes, pixels


def cell_targets(scene):
    """[19] numbers: shape (0 = none) of the 9 cells, colour of the 9 cells, colour of the background (-100 = has no name)."""
    shape, colour = [0] * 9, [0] * 9
    for o in scene["objects"]:
        cell = o["cell"][0] * 3 + o["cell"][1]
        shape[cell] = 1 + shapes.SHAPES.index(o["shape"])
        colour[cell] = 1 + shapes.COLOUR_NAMES.index(o["colour"])
    return shape + colour + [shapes.COLOUR_NAMES.index(scene["bg"]) if scene["bg"] else -100]


# Cells of a picture that was mirrored left to right; the shapes are symmetrical.
MIRROR = [r * 3 + 2 - c for r in range(3) for c in range(3)]


def mirrored(pixels, targets, rng):
    """Half of the pictures, mirrored: twice as many for the tower to learn from. pixels [n, 3, size, size], targets [n, 19]."""
    which = torch.tensor([rng.random() < 0.5 for _ in range(len(pixels))])
    pixels, targets = pixels.clone(), targets.clone()
    pixels[which] = pixels[which].flip(-1)
    targets[which] = targets[which][:, MIRROR + [9 + m for m in MIRROR] + [18]]
    return pixels, targets


def varied(pixels, targets, rng):
    """Half of the pictures mirrored, and all moved by up to two pixels: the tower sees many more pictures than were drawn."""
    pixels, targets = mirrored(pixels, targets, rng)
    height, width = pixels.shape[-2:]
    wide = torch.nn.functional.pad(pixels.float(), (2, 2, 2, 2), mode="replicate")
    moved = [wide[i, :, y:y + height, x:x + width] for i in range(len(wide)) for y, x in [(rng.randrange(5), rng.randrange(5))]]
    return torch.stack(moved), targets


class Conversations:
    """Makes batches of token trees. Everything follows from the generator that is handed to batch()."""

    def __init__(self, tokenizer, scenes, soft_tokens, window):
        self.tok, self.scenes, self.window = tokenizer, scenes, window
        self.image = f"\n\n<start_of_image>{SOFT * soft_tokens}<end_of_image>\n\n"
        self.soft = tokenizer.convert_tokens_to_ids(SOFT)

    # ------------------------------------------------------------ text of rows
    # A row is (pieces of the beginning, branches): a piece is (text, learn); a branch is a list of pieces. `pictures` lists
    # the pool indices (group, member) in the order of the picture runs: beginning first, then branch after branch.

    def _open(self, rng):
        lead = rng.choice(shapes.SYSTEMS) + "\n\n" if rng.random() < 0.25 else ""
        return "<bos><start_of_turn>user\n" + lead

    @staticmethod
    def _turn(user, answer):
        return [(user.strip(" ") + "<end_of_turn>\n<start_of_turn>model\n", False), (answer + "<end_of_turn>", True)]

    def _content(self, rng, count, question, text_first=None):
        if text_first is None:
            text_first = rng.random() < 0.3
        return question + self.image * count if text_first else self.image * count + question

    NEXT = ("\n<start_of_turn>user\n", False)

    def _scene(self, picture):
        return self.scenes[picture[0]][picture[1]]

    def _any(self, rng):
        return rng.randrange(len(self.scenes)), rng.choice((0, 1, 2))

    def _pair(self, rng):
        """Two pool pictures in some order: equal, one change, or unrelated (of few objects)."""
        group = rng.randrange(len(self.scenes))
        while len(self.scenes[group][0]["objects"]) > shapes.PAIR_OBJECTS:
            group = rng.randrange(len(self.scenes))
        roll = rng.random()
        if roll < 0.30:
            pair = [(group, 0), (group, rng.choice((0, 1, 1, 1)))]
        elif roll < 0.78:
            pair = [(group, rng.choice((0, 1))), (group, 2)]
        else:
            while True:
                pair = [self._any(rng), self._any(rng)]
                a, b = map(self._scene, pair)
                if max(len(a["objects"]), len(b["objects"])) <= 2 and shapes.difference(a, b) and not shapes.ambiguous(a, b):
                    break
        if rng.random() < 0.5:
            pair.reverse()
        return pair

    def single_tree(self, rng):
        pic = self._any(rng)
        questions = shapes.single_questions(rng, self._scene(pic))
        if rng.random() < 0.3:
            rng.shuffle(questions)
            questions = questions[:4]
            return [(self._open(rng), False)], [self._turn(q + self.image, a) for _, q, a in questions], [pic] * len(questions)
        return [(self._open(rng) + self.image, False)], [self._turn(q, a) for _, q, a in questions], [pic]

    def single_turns(self, rng):
        pic = self._any(rng)
        questions = shapes.single_questions(rng, self._scene(pic))
        rng.shuffle(questions)
        pieces = [(self._open(rng), False)]
        for i, (_, q, a) in enumerate(questions[:4]):
            pieces += ([self.NEXT] if i else []) + self._turn(self._content(rng, 1, q) if i == 0 else q, a)
        more = questions[4:]
        return pieces, [[self.NEXT] + self._turn(q, a) for _, q, a in more], [pic]

    def pair_tree(self, rng):
        pair = self._pair(rng)
        a, b = map(self._scene, pair)
        if rng.random() < 0.3:
            questions = shapes.pair_questions(rng, a, b)
            return ([(self._open(rng), False)], [self._turn(q + self.image * 2, s) for _, q, s in questions], pair * 2)
        questions = shapes.pair_questions(rng, a, b) + shapes.pair_questions(rng, a, b)[1:]
        questions += [shapes.ordinal_questions(rng, (a, b), i) for i in (0, 1)]
        return [(self._open(rng) + self.image * 2, False)], [self._turn(q, s) for _, q, s in questions], pair

    def pair_turns(self, rng):
        """The first picture in an earlier turn; the second, with a question about both, in a later one."""
        pair = self._pair(rng)
        a, b = map(self._scene, pair)
        before = shapes.single_questions(rng, a)
        rng.shuffle(before)
        pieces = [(self._open(rng), False)]
        for i, (_, q, s) in enumerate(before[:rng.choice((1, 1, 1, 2))]):
            pieces += ([self.NEXT] if i else []) + self._turn(self._content(rng, 1, q) if i == 0 else q, s)
        pieces.append(self.NEXT)
        own = rng.choice(shapes.single_questions(rng, b))
        questions = shapes.pair_questions(rng, a, b, later=True)
        if rng.random() < 0.3:
            return pieces, [self._turn(q + self.image, s) for _, q, s in questions + [own]], [pair[0]] + [pair[1]] * 3
        questions += shapes.pair_questions(rng, a, b, later=True)[1:] + [own, shapes.ordinal_questions(rng, (a, b), rng.randrange(2))]
        if rng.random() < 0.2:
            pieces += self._turn(self.image + own[1], own[2]) + [self.NEXT]
            return pieces, [self._turn(q, s) for _, q, s in questions], pair
        return pieces + [(self.image, False)], [self._turn(q, s) for _, q, s in questions], pair

    def three(self, rng):
        pair = self._pair(rng)
        pics = [self._any(rng)] + pair
        scenes = [self._scene(p) for p in pics]
        if rng.random() < 0.5:
            questions = [shapes.ordinal_questions(rng, scenes, i) for i in range(3)]
            return [(self._open(rng) + self.image * 3, False)], [self._turn(q, s) for _, q, s in questions], pics
        pieces = [(self._open(rng), False)]
        for i in (0, 1):
            _, q, s = rng.choice(shapes.single_questions(rng, scenes[i]))
            pieces += self._turn(self.image + q, s) + [self.NEXT]
        same = "Yes, they are the same." if shapes.difference(*scenes[1:]) is None else "No, they are different."
        previous = rng.choice(("Is this picture the same as the previous one?", "Is this the same picture as the previous one?",
                               "Is this image the same as the one before?"))
        questions = [shapes.ordinal_questions(rng, scenes, rng.randrange(3)), (None, shapes.style(rng, previous), same),
                     rng.choice(shapes.single_questions(rng, scenes[2]))]
        return pieces + [(self.image, False)], [self._turn(q, s) for _, q, s in questions], pics

    def talk(self, rng):
        return [(self._open(rng), False)], [self._turn(*shapes.small_talk(rng)) for _ in range(5)], []

    # ------------------------------------------------------------ tensors

    def batch(self, rng, plan):
        """plan: {maker name: rows} or (number of rows, {maker name: weight}). Returns a dict of tensors; `pictures` lists the distinct pool pictures, `slots` says
        for every picture run of the batch, in row-major order, which of them it shows, `before` which one its conversation
        showed before it (-1 = none)."""
        if isinstance(plan, tuple):
            names = rng.choices(list(plan[1]), list(plan[1].values()), k=plan[0])
        else:
            names = [name for name, count in plan.items() for _ in range(count)]
        rows = [getattr(self, name)(rng) for name in names]
        texts = [t for pieces, branches, _ in rows for part in [pieces] + branches for t, _ in part]
        encoded = iter(self.tok._tokenizer.encode_batch(texts, add_special_tokens=False))
        distinct, slots, before, made = {}, [], [], []
        for pieces, branches, pictures in rows:
            last, seen = -1, 0
            for number, part in enumerate([pieces] + branches):
                runs = sum(text.count("<start_of_image>") for text, _ in part)
                here = [distinct.setdefault(p, len(distinct)) for p in pictures[seen:seen + runs]]
                before += ([last] + here)[:-1] if here else []
                last, seen = here[-1] if here and number == 0 else last, seen + runs
                slots += here
            assert seen == len(pictures)
            ids, learn, pos, branch, start = [], [], [], [], 0
            for number, part in enumerate([pieces] + branches):
                at = start
                for _, wanted in part:
                    new = next(encoded).ids
                    ids += new
                    learn += [wanted] * len(new)
                    pos += range(at, at + len(new))
                    branch += [number] * len(new)
                    at += len(new)
                start = at if number == 0 else start
            made.append((ids, learn, pos, branch))
        length = max(len(m[0]) for m in made)
        count = len(made)
        ids = torch.zeros(count, length, dtype=torch.long)
        pos, branch = torch.zeros_like(ids), torch.full_like(ids, -1)
        learn = torch.zeros(count, length, dtype=torch.bool)
        for i, m in enumerate(made):
            n = len(m[0])
            ids[i, :n], learn[i, :n] = torch.tensor(m[0]), torch.tensor(m[1])
            pos[i, :n], branch[i, :n] = torch.tensor(m[2]), torch.tensor(m[3])
        soft = ids == self.soft
        first = soft & ~torch.nn.functional.pad(soft, (1, 0))[:, :-1]
        run = torch.where(soft, first.long().cumsum(1), torch.zeros_like(ids))
        same_run = (run[:, :, None] == run[:, None, :]) & soft[:, :, None]
        family = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
        delta = pos[:, :, None] - pos[:, None, :]
        full = family & ((delta >= 0) | same_run)
        sliding = full & (delta < self.window)
        labels = torch.where(learn, ids, torch.full_like(ids, -100))
        return {"ids": ids, "positions": pos, "full": full[:, None], "sliding": sliding[:, None], "soft": soft,
                "labels": labels, "branch": branch, "pictures": list(distinct), "slots": torch.tensor(slots, dtype=torch.long),
                "before": torch.tensor(before, dtype=torch.long)}
