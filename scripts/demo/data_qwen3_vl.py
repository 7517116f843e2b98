"""Training data of the Qwen3-VL demo model: pictures on grids of several shapes, and token trees with three-part positions.

The rows, questions and answers are those of data.py. Different are the chat format, the number of tokens of a picture (it keeps its
shape, so that one picture is 4 x 4 tokens and another 5 x 3), the positions (time, row, column) and the attention: causal everywhere,
inside pictures too.
"""

import multiprocessing
import os

import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tvf
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

import data
import shapes

PATCH, MERGE = 12, 2
SIDE = PATCH * MERGE  # pixels per token and axis
AREA = (8640, 13000)  # pixels of a resized picture: at least, at most
SHARD = 10000  # groups of pictures in one file
PAD, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


def to_pixels(picture):
    """uint8 [3, h, w] as the checkpoint's processor makes it before rescaling (torchvision, bicubic, antialias)."""
    tensor = tvf.pil_to_tensor(picture)
    size = smart_resize(tensor.shape[1], tensor.shape[2], SIDE, *AREA)
    return tvf.resize(tensor, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True)


def _draw(job):
    torch.set_num_threads(1)
    split, first, last = job
    scenes, pictures, targets = [], [], []
    for number in range(first, last):
        three, drawn = shapes.make_group(split, number)
        scenes.append(three)
        targets.append([data.cell_targets(s) for s in three])
        pictures += [to_pixels(p).numpy() for p in drawn]
    return scenes, pictures, targets


class Pool:
    """Groups of three pictures: `targets` [groups, 3, 19], pixels by grid, and the scenes of the first groups."""

    def __init__(self, shards):
        """shards: file names without ending."""
        self.shards, self.scenes, self.members = shards, [], {}
        self.parts = [torch.load(name + ".pt", mmap=True) for name in shards]
        self.targets = torch.cat([p["targets"] for p in self.parts]).long()
        self.where = torch.cat([p["where"] for p in self.parts])  # [groups, 3, (rows of tokens, columns, index)]
        self.size = len(self.parts[0]["targets"])

    def load_scenes(self, shards):
        self.scenes = [s for name in self.shards[:shards] for s in torch.load(name + ".scenes", weights_only=False)]

    def alike(self, rng, count):
        """`count` pictures of one grid, the grid as often as it occurs: fewer and larger operators than with a mixture."""
        grid = self.grid(rng.randrange(len(self.where)), rng.randrange(3))
        if grid not in self.members:
            self.members[grid] = ((self.where[..., :2] == torch.tensor(grid)).all(-1)).nonzero()
        some = self.members[grid]
        return some[[rng.randrange(len(some)) for _ in range(count)]].tolist()

    def grid(self, group, member):
        return tuple(self.where[group, member, :2].tolist())

    def by_grid(self, pictures):
        """pictures: list of (group, member). Yields (grid, places in the list, uint8 [n, 3, h, w])."""
        places = {}
        for i, (group, member) in enumerate(pictures):
            rows, columns, index = self.where[group, member].tolist()
            places.setdefault((rows, columns), []).append((i, group // self.size, index))
        for grid, items in places.items():
            yield grid, [i for i, _, _ in items], torch.stack([self.parts[part]["pixels"][grid][index] for _, part, index in items])


def draw_shard(path, split, first, last, workers=2):
    """Draws the groups first..last-1 of the split into path.pt and path.scenes. Equal for any number of workers."""
    jobs = [(split, i, min(i + 125, last)) for i in range(first, last, 125)]
    scenes, targets, where, pixels = [], [], [], {}
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for s, pictures, t in pool.imap(_draw, jobs):
            scenes += s
            targets += t
            for picture in pictures:
                grid = picture.shape[1] // SIDE, picture.shape[2] // SIDE
                rows = pixels.setdefault(grid, [])
                where.append((*grid, len(rows)))
                rows.append(torch.from_numpy(picture))
    torch.save(scenes, path + ".scenes")
    torch.save({"targets": torch.tensor(targets, dtype=torch.int8), "where": torch.tensor(where, dtype=torch.int32).view(-1, 3, 3),
                "pixels": {grid: torch.stack(rows) for grid, rows in pixels.items()}}, path + ".pt.new")
    os.replace(path + ".pt.new", path + ".pt")


def patches(pixels):
    """Pixels [n, 3, h, w] (0..255) -> normalised patches [n, tokens * 4, 3 * 12 * 12] in the order of the merger."""
    n, c, h, w = pixels.shape
    x = ((pixels.float() - 127.5) / 127.5).view(n, c, h // SIDE, MERGE, PATCH, w // SIDE, MERGE, PATCH)
    return x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(n, -1, c * PATCH * PATCH)


def slots(grid):
    """The token of each of the nine cells of a picture: the one that has the cell's centre in it."""
    rows, columns = ([int((k + 0.5) / 3 * size) for k in range(3)] for size in grid)
    return [r * grid[1] + c for r in rows for c in columns]


class Conversations(data.Conversations):
    """Batches of token trees in the chat format of Qwen. The rows are made by data.Conversations; here they become tensors."""

    NEXT = ("\n<|im_start|>user\n", False)

    def __init__(self, tokenizer, pool, reworded):
        """pool: a Pool with scenes; reworded: answers that this model gives in other words."""
        self.tok, self.pool, self.scenes, self.reworded = tokenizer, pool, pool.scenes, reworded
        self.image = START + PAD + END
        self.soft = tokenizer.convert_tokens_to_ids(PAD)

    def _open(self, rng):
        lead = f"<|im_start|>system\n{rng.choice(shapes.SYSTEMS)}<|im_end|>\n" if rng.random() < 0.25 else ""
        return lead + "<|im_start|>user\n"

    @staticmethod
    def _turn(user, answer):
        return [(user + "<|im_end|>\n<|im_start|>assistant\n", False), (answer + "<|im_end|>", True)]

    def talk(self, rng):
        questions = [shapes.small_talk(rng) for _ in range(5)]
        return [(self._open(rng), False)], [self._turn(q, self.reworded.get(a, a)) for q, a in questions], []

    def _tokens(self, text, shown, at):
        """Token numbers of a piece, pads repeated as often as their picture has tokens, and the positions from `at` on."""
        ids, where = [], []
        for token in text:
            if token != self.soft:
                ids.append(token)
                where.append((at, at, at))
                at += 1
                continue
            rows, columns = self.pool.grid(*next(shown))
            ids += [token] * (rows * columns)
            where += [(at, at + r, at + c) for r in range(rows) for c in range(columns)]
            at += max(rows, columns)
        return ids, where, at

    def batch(self, rng, plan):
        """plan: (number of rows, {maker name: weight}). Returns a dict of tensors: ids, labels, branch [n, length], soft (tokens of
        pictures), positions [3, n, length], mask [n, 1, length, length]; `pictures` lists the picture of every run of soft tokens in
        row-major order, `before` the picture that its conversation showed before it (None: none)."""
        rows = [getattr(self, name)(rng) for name in rng.choices(list(plan[1]), list(plan[1].values()), k=plan[0])]
        texts = [t for pieces, branches, _ in rows for part in [pieces] + branches for t, _ in part]
        encoded = iter(self.tok._tokenizer.encode_batch(texts, add_special_tokens=False))
        shown, before, made = [], [], []
        for pieces, branches, pictures in rows:
            last, seen = None, 0
            ids, learn, where, branch, start = [], [], [], [], 0
            for number, part in enumerate([pieces] + branches):
                at = start
                runs = sum(text.count(PAD) for text, _ in part)
                here = pictures[seen:seen + runs]
                before += ([last] + here)[:-1] if here else []
                shown += here
                last, seen = here[-1] if here and number == 0 else last, seen + runs
                following = iter(here)
                for _, wanted in part:
                    new, places, at = self._tokens(next(encoded).ids, following, at)
                    ids += new
                    where += places
                    learn += [wanted] * len(new)
                    branch += [number] * len(new)
                start = at if number == 0 else start
            assert seen == len(pictures)
            made.append((ids, learn, where, branch))
        length, count = max(len(m[0]) for m in made), len(made)
        ids = torch.zeros(count, length, dtype=torch.long)
        branch, learn = torch.full_like(ids, -1), torch.zeros(count, length, dtype=torch.bool)
        positions = torch.zeros(3, count, length, dtype=torch.long)
        for i, m in enumerate(made):
            n = len(m[0])
            ids[i, :n], learn[i, :n], branch[i, :n] = torch.tensor(m[0]), torch.tensor(m[1]), torch.tensor(m[3])
            positions[:, i, :n] = torch.tensor(m[2]).T
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        family = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
        return {"ids": ids, "positions": positions, "mask": (family & causal)[:, None], "soft": ids == self.soft, "branch": branch,
                "labels": torch.where(learn, ids, torch.full_like(ids, -100)), "pictures": shown, "before": before}
