"""Trains the second bundled checkpoint: a tiny Qwen3-VL that answers the same questions about the same pictures as the Gemma 3 one.

python scripts/demo/train_qwen3_vl.py [--start build/demo/state.pt] [--out models/demo-qwen3-vl] [--work DIR] [--resume]
CPU only, seeded, budgets in steps, two processes as in train.py. It starts from the Gemma 3 demo model (--start: the state that train.py
leaves, or its checkpoint folder), copied as far as the two architectures agree. The recipe is a list of phases name:steps:rate:last rate:
tower    the tower, its merger and the DeepStack mergers; helper heads read the nine cells of the picture from its tokens
pairs    the text model, questions about one, two and three pictures; the features of the pictures are computed once
settle   the same in larger steps
--resume with another recipe than the saved state's begins that recipe at its first phase, with the weights of the state.
"""

import argparse
import math
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
from torch import distributed, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, Gemma3ForConditionalGeneration
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

import checkpoint
import checkpoint_qwen3_vl
import data
import data_qwen3_vl
import shapes
import train

PROCESSES = train.PROCESSES
TOWER_BATCH = 48
MOST_TOKENS = 20  # of a picture
EVERYTHING = {"single_tree": 30, "single_turns": 6, "pair_tree": 26, "pair_turns": 33, "three": 2, "talk": 3}
PLANS = {
    "pairs": (6, EVERYTHING),
    "settle": (12, EVERYTHING),
}
RECIPE = "tower:1200:1e-3:1e-5,pairs:1500:1e-3:2e-4,settle:300:2e-4:2e-6"


class Reader(nn.Module):
    """Helper heads that are thrown away: they read shape and colour of a picture's nine cells each from one token of its own, the other
    tokens being empty, and the place of the cell, which is easy to use for the text model."""

    def __init__(self, width):
        super().__init__()
        self.shape = nn.Linear(width, len(shapes.SHAPES) + 1)
        self.colour = nn.Linear(width, len(shapes.COLOUR_NAMES) + 1)
        self.ground = nn.Linear(width, len(shapes.COLOUR_NAMES))
        self.place = nn.Linear(width, 10)
        self.shape_before = nn.Linear(width, len(shapes.SHAPES) + 1)
        self.colour_before = nn.Linear(width, len(shapes.COLOUR_NAMES) + 1)
        self.changed = nn.Linear(width, 2)

    @staticmethod
    def in_slots(targets, grid):
        """targets [n, 19] -> shape and colour [n, tokens]."""
        empty = torch.zeros(len(targets), grid[0] * grid[1], dtype=torch.long)
        place = torch.tensor(data_qwen3_vl.slots(grid))
        return empty.index_copy(1, place, targets[:, :9]), empty.index_copy(1, place, targets[:, 9:18])

    def before_loss(self, early, later, before, now):
        """Asks a picture's tokens inside the text model what the picture before it showed at their place, and a layer later whether that
        is something else than now. early, later [tokens, width]; before, now: (shape, colour) [tokens]."""
        early, later = (F.rms_norm(h.float(), h.shape[-1:]) for h in (early, later))
        changed = (before[0] != now[0]) | (before[1] != now[1])
        return (F.cross_entropy(self.shape_before(early), before[0]) + F.cross_entropy(self.colour_before(early), before[1])
                + F.cross_entropy(self.changed(later), changed.long()))

    def read(self, features, targets, grid):
        """features [n, tokens, width]. Returns summed losses of the pictures and which of them are read without a mistake."""
        features = features.float() * checkpoint_qwen3_vl.LOUDNESS
        ts, tc = self.in_slots(targets, grid)
        place = torch.zeros(grid[0] * grid[1], dtype=torch.long)
        place[data_qwen3_vl.slots(grid)] = torch.arange(1, 10)
        shape, colour = self.shape(features), self.colour(features)
        tokens = ts.shape[1]
        loss = (F.cross_entropy(shape.flatten(0, 1), ts.flatten(), reduction="sum")
                + F.cross_entropy(colour.flatten(0, 1), tc.flatten(), reduction="sum")) / tokens
        loss = loss + 0.2 * F.cross_entropy(self.ground(features.mean(1)), targets[:, 18], reduction="sum")
        loss = loss + 0.2 * F.cross_entropy(self.place(features).flatten(0, 1), place.repeat(len(targets)), reduction="sum") / tokens
        return loss, ((shape.argmax(-1) == ts) & (colour.argmax(-1) == tc)).all(1)


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        torch.set_num_threads(1)
        self.tokenizer = checkpoint_qwen3_vl.build_tokenizer()
        self.processor = checkpoint_qwen3_vl.build_processor(self.tokenizer)
        self.model = checkpoint_qwen3_vl.build_model(self.tokenizer)
        self.visual, self.text = self.model.model.visual, self.model.model.language_model
        self.text.config._attn_implementation = "eager"
        self.width = self.model.config.text_config.hidden_size
        self.taps = list(self.model.config.vision_config.deepstack_visual_indexes)
        self.reader = Reader(self.width)
        self.grids = {}
        groups = {}
        for name, p in list(self.model.named_parameters()) + list(self.reader.named_parameters()):
            # The start from Gemma leaves loud embeddings and a quiet last norm.
            factor = 3.0 if "embed_tokens" in name else 0.1 if name.endswith("language_model.norm.weight") else 1.0
            groups.setdefault((factor, 0.02 if p.dim() >= 2 else 0.0), []).append(p)
        self.opt = torch.optim.AdamW([{"params": p, "factor": factor, "weight_decay": decay} for (factor, decay), p in groups.items()],
                                     lr=0, betas=(0.9, 0.98), eps=1e-8)
        self.recipe = [(name, int(steps), float(first), float(last))
                       for name, steps, first, last in (phase.split(":") for phase in args.recipe.split(","))]
        self.step, self.tower_steps, self.memory = 0, 0, None

    def log(self, text):
        if not self.args.rank:
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    # ------------------------------------------------------------ beginning

    def start(self):
        """The weights of the Gemma 3 demo model, as far as they fit."""
        a = self.args
        old_tokenizer = checkpoint.build_tokenizer()
        if a.start.endswith(".pt"):
            state = torch.load(a.start)
            old = checkpoint.build_model(old_tokenizer)
            old.load_state_dict(state["model"])
            own = self.reader.state_dict()
            self.reader.load_state_dict(own | {k: v for k, v in state["reader"].items() if k in own and v.shape == own[k].shape})
        else:
            old = Gemma3ForConditionalGeneration.from_pretrained(a.start, dtype=torch.float32)
            old_tokenizer = AutoTokenizer.from_pretrained(a.start)
        processor, batches = checkpoint.build_processor(old_tokenizer), []
        for number in range(24):
            rng = random.Random(number)
            scenes, pictures = shapes.make_group("train", number)
            turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": shapes.single_questions(rng, scenes[0])[0][1]}]}
            text = processor.apply_chat_template([turn], add_generation_prompt=True) + shapes.single_questions(rng, scenes[0])[0][2]
            batches.append(processor(text=text, images=[[pictures[0]]], add_special_tokens=False, return_tensors="pt"))
        checkpoint_qwen3_vl.start_from_gemma(self.model, self.tokenizer, old.eval(), old_tokenizer, batches)

    def load_pool(self):
        a = self.args
        names = [os.path.join(a.work, f"pictures-{k}") for k in range(a.shards)]
        if not a.rank:
            for k, name in enumerate(names):
                if not os.path.exists(name + ".pt"):
                    self.log(f"drawing {name}")
                    data_qwen3_vl.draw_shard(name, "train", k * data_qwen3_vl.SHARD, (k + 1) * data_qwen3_vl.SHARD)
            if not os.path.exists(os.path.join(a.work, "valid.pt")):
                data_qwen3_vl.draw_shard(os.path.join(a.work, "valid"), "valid", 0, 400)
        distributed.barrier()
        self.pool = data_qwen3_vl.Pool(names)
        self.valid = data_qwen3_vl.Pool([os.path.join(a.work, "valid")])
        self.log("pictures ready")

    # ------------------------------------------------------------ forward passes, equal to those of transformers

    def grid_tables(self, grid):
        """Interpolation and rotation of a grid of tokens: indices, weights [patches, 4], cos and sin [patches, head size]."""
        if grid not in self.grids:
            thw = torch.tensor([[1, grid[0] * 2, grid[1] * 2]])
            index, weight = get_vision_interpolation_indices_and_weights(
                thw, num_grid_per_side=self.visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=2)
            cos, sin = self.visual.rotary_pos_emb(index, get_vision_position_ids(thw, 2))
            self.grids[grid] = index, weight[..., None], cos[:, None], sin[:, None]
        return self.grids[grid]

    def features(self, pixels, grid):
        """Pixels [n, 3, h, w] -> what the pictures are to the text model, [n, tokens, width * (1 + taps)]."""
        visual, (index, weight, cos, sin) = self.visual, self.grid_tables(grid)
        proj = visual.patch_embed.proj
        kernel = proj.weight.sum(2).flatten(1)  # a still picture fills both time slots
        x = F.linear(data_qwen3_vl.patches(pixels), kernel, proj.bias) + (visual.pos_embed(index) * weight).sum(1)
        n, length, width = x.shape
        out = []
        for number, block in enumerate(visual.blocks):
            heads = block.attn.num_heads
            q, k, v = block.attn.qkv(block.norm1(x)).view(n, length, 3, heads, -1).unbind(2)
            q, k = ((t * cos.to(t.dtype) + modeling_qwen3_vl.rotate_half(t) * sin.to(t.dtype)).transpose(1, 2) for t in (q, k))
            scores = (q * block.attn.scaling) @ k.transpose(2, 3)
            mixed = (scores.softmax(-1).to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2).reshape(n, length, width)
            x = x + block.attn.proj(mixed)
            x = x + block.mlp(block.norm2(x))
            if number in self.taps:
                out.append(visual.deepstack_merger_list[self.taps.index(number)](x.float()).view(n, length // 4, -1))
        return torch.cat([visual.merger(x.float()).view(n, length // 4, -1)] + out, -1)

    def tower_loss(self, pool, pictures, rng=None):
        """rng: the pictures are varied. Returns loss and share of the pictures that are read without a mistake."""
        loss, right = 0.0, 0
        for grid, places, pixels in pool.by_grid(pictures):
            groups, members = torch.tensor([pictures[i] for i in places]).unbind(1)
            targets = pool.targets[groups, members]
            if rng:
                pixels, targets = data.varied(pixels, targets, rng)
            parts = self.features(pixels, grid).float().unflatten(-1, (-1, self.width))
            one, good = self.reader.read(parts[:, :, 0], targets, grid)
            all_of_them, _ = self.reader.read(parts.sum(2), targets, grid)
            loss, right = loss + one + 0.5 * all_of_them, right + good.sum().item()
        return loss / len(pictures), right / len(pictures)

    def remember(self):
        """Computes the features of the text model's pictures for the time in which the tower doesn't learn, each process one half."""
        if not self.pool.scenes:
            self.pool.load_scenes(self.args.text_shards)
            self.talks = data_qwen3_vl.Conversations(self.tokenizer, self.pool, {shapes.WHO: checkpoint_qwen3_vl.WHO})
        groups, wide = len(self.pool.scenes), self.width * (1 + len(self.taps))
        path = os.path.join(self.args.work, f"features-{self.tower_steps}-{groups}.bin")
        done = os.path.exists(path + ".done")
        distributed.barrier()
        if not self.args.rank and not done:
            with open(path, "wb") as f:
                f.truncate(2 * groups * 3 * MOST_TOKENS * wide)
        distributed.barrier()
        self.memory = torch.from_file(path, shared=True, size=groups * 3 * MOST_TOKENS * wide,
                                      dtype=torch.bfloat16).view(groups, 3, MOST_TOKENS, wide)
        if not done:
            with torch.no_grad():
                for first in range(self.args.rank * 40, groups, PROCESSES * 40):
                    some = [(g, k) for g in range(first, min(groups, first + 40)) for k in range(3)]
                    for grid, places, pixels in self.pool.by_grid(some):
                        which = torch.tensor([some[i] for i in places])
                        self.memory[which[:, 0], which[:, 1], :grid[0] * grid[1]] = self.features(pixels, grid).to(torch.bfloat16)
            distributed.barrier()
            if not self.args.rank:
                open(path + ".done", "w").close()
        self.log("features ready")

    def body(self, batch, runs):
        """The text model. runs [soft tokens, width * (1 + taps)]: features in the order of the tokens. Returns the hidden states behind the
        last norm and those of the soft tokens after the second and third layer."""
        soft = batch["soft"][..., None]
        hidden = self.text.embed_tokens(torch.where(batch["soft"], torch.zeros_like(batch["ids"]), batch["ids"]))
        parts = runs.to(hidden.dtype).unflatten(-1, (-1, self.width)).unbind(1) if len(runs) else []
        if len(runs):
            hidden = hidden.masked_scatter(soft, parts[0])
        rotation = self.text.rotary_emb(hidden, batch["positions"])
        if torch.is_autocast_enabled("cpu"):
            rotation = tuple(r.to(torch.bfloat16) for r in rotation)
        mask, kept = torch.where(batch["mask"], 0.0, -1e4).to(rotation[0].dtype), {}
        for number, layer in enumerate(self.text.layers):
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation)
            if len(runs) and number < len(self.taps):
                hidden = hidden + torch.zeros_like(hidden).masked_scatter(soft, parts[1 + number].to(hidden.dtype))
            if number in (1, 2):
                kept[number] = hidden[batch["soft"]]
        return self.text.norm(hidden), kept

    def answers_loss(self, batch):
        """Only the text model learns here."""
        grids = [self.pool.grid(*p) for p in batch["pictures"]]
        runs = torch.empty(0)
        if batch["pictures"]:
            groups, members = torch.tensor(batch["pictures"]).unbind(1)
            lengths = torch.tensor([g[0] * g[1] for g in grids])
            runs = self.memory[groups, members][torch.arange(MOST_TOKENS) < lengths[:, None]]
        hidden, kept = self.body(batch, runs)
        helper, at, rows, before, now = torch.zeros(()), 0, [], [], []
        for shown, earlier, grid in zip(batch["pictures"], batch["before"], grids):
            tokens = grid[0] * grid[1]
            if earlier is not None:
                rows.append(torch.arange(at, at + tokens))
                for targets, place in ((before, earlier), (now, shown)):
                    targets.append(torch.cat(Reader.in_slots(self.pool.targets[place][None], grid)))
            at += tokens
        if rows:
            rows = torch.cat(rows)
            helper = 0.5 * self.reader.before_loss(kept[1][rows], kept[2][rows], torch.cat(before, 1), torch.cat(now, 1))
        wanted = batch["labels"][:, 1:] != -100
        target = batch["labels"][:, 1:][wanted]
        logits = self.model.lm_head(hidden[:, :-1][wanted]).float()
        loss = F.cross_entropy(logits, target)
        branch = batch["branch"][:, 1:][wanted] + 1000 * torch.arange(len(batch["ids"]))[:, None].expand_as(wanted)[wanted]
        wrong = branch[logits.argmax(-1) != target].unique().numel()
        return loss, helper, 1 - wrong / branch.unique().numel()

    # ------------------------------------------------------------ the loop

    def average_gradients(self, tower):
        """Over the processes; parameters that don't learn now keep no gradient, so that nothing decays them either."""
        params = list((self.visual if tower else self.text).parameters()) + list(self.reader.parameters())
        flat = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in params])
        distributed.all_reduce(flat)
        at = 0
        for p in params:
            p.grad = flat[at:at + p.numel()].view_as(p) / PROCESSES
            at += p.numel()

    def phase(self):
        """Name and learning rate of the present step."""
        at = self.step
        for name, steps, first, last in self.recipe:
            if at < steps:
                return name, (last + (first - last) * 0.5 * (1 + math.cos(math.pi * at / steps))) * min(1.0, (at + 1) / 50)
            at -= steps
        return None, 0.0

    def check(self):
        """The tower on pictures that it never learns from."""
        pictures = [(g, k) for g in range(self.args.rank, len(self.valid.targets), PROCESSES) for k in range(3)]
        with torch.no_grad():
            shares = torch.tensor([self.tower_loss(self.valid, pictures)[1]])
        distributed.all_reduce(shares)
        self.log(f"fresh pictures right {shares.item() / PROCESSES:.4f}")

    def run(self):
        a = self.args
        total = sum(steps for _, steps, _, _ in self.recipe)
        sums, started = [], time.time()
        while self.step < total:
            rng = random.Random(f"{a.seed}:{a.recipe}:{self.step}:{a.rank}")
            name, rate = self.phase()
            for group in self.opt.param_groups:
                group["lr"] = rate * group["factor"]
            loss, helper, exact, right = torch.zeros(()), torch.zeros(()), 0.0, 0.0
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(a.bf16)):
                if name == "tower":
                    self.memory, self.tower_steps = None, self.tower_steps + 1
                    pictures = self.pool.alike(rng, TOWER_BATCH // 2) + self.pool.alike(rng, TOWER_BATCH // 2)
                    helper, right = self.tower_loss(self.pool, pictures, rng)
                else:
                    if self.memory is None:
                        self.remember()
                        started = time.time()
                    loss, helper, exact = self.answers_loss(self.talks.batch(rng, PLANS[name]))
            (loss + helper).backward()
            self.average_gradients(name == "tower")
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            self.step += 1
            sums.append((loss.item(), helper.item(), exact, right))
            if self.step % a.log_every == 0:
                mean = [sum(s[i] for s in sums) / len(sums) for i in range(4)]
                self.log(f"{name} {self.step}/{total} loss {mean[0]:.4f} helper {mean[1]:.4f} answers right {mean[2]:.4f} "
                         f"pictures right {mean[3]:.4f} lr {rate:.2e} {(time.time() - started) / len(sums):.3f} s/step")
                sums, started = [], time.time()
            if self.step % a.save_every == 0 or self.step == total:
                if name == "tower":
                    self.check()
                self.store(name)
                started = time.time()

    def store(self, name):
        a = self.args
        if a.rank:
            return
        path = os.path.join(a.work, "state.pt")
        torch.save({"model": self.model.state_dict(), "reader": self.reader.state_dict(), "opt": self.opt.state_dict(),
                    "step": self.step, "recipe": a.recipe, "tower_steps": self.tower_steps}, path + ".new")
        os.replace(path + ".new", path)
        if a.out and name != "tower":
            checkpoint_qwen3_vl.save(self.model, self.processor, a.out)

    def resume(self):
        state = torch.load(os.path.join(self.args.work, "state.pt"))
        self.model.load_state_dict(state["model"])
        self.reader.load_state_dict(state["reader"])
        self.opt.load_state_dict(state["opt"])
        self.tower_steps = state["tower_steps"]
        self.step = state["step"] if state["recipe"] == self.args.recipe else 0


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--start", default="build/demo/state.pt", help="state of train.py or folder of the Gemma 3 demo model")
    p.add_argument("--out", default="models/demo-qwen3-vl")
    p.add_argument("--work", default="build/demo-qwen", help="folder for the pictures and the state of an interrupted run")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--recipe", default=RECIPE)
    p.add_argument("--shards", type=int, default=6, help=f"files of {data_qwen3_vl.SHARD} groups of three pictures for the tower")
    p.add_argument("--text-shards", type=int, default=3, help="as many of them for the text model")
    p.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    p.add_argument("--bf16", type=int, default=1, help="1: bf16 autocast, 0: float32")
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--save-every", type=int, default=250)
    return p.parse_args()


def main():
    args = arguments()
    os.makedirs(args.work, exist_ok=True)
    meeting = os.path.join(os.path.abspath(args.work), "meeting")
    if args.rank == 0:
        if os.path.exists(meeting):
            os.remove(meeting)
        for rank in range(1, PROCESSES):
            subprocess.Popen([sys.executable] + sys.argv + ["--rank", str(rank)])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method="file://" + meeting, rank=args.rank, world_size=PROCESSES)
    modeling_qwen3_vl.Qwen3VLTextRMSNorm.forward = lambda norm, x: train.FastNorm.apply(x, norm.weight - 1, norm.variance_epsilon)
    trainer = Trainer(args)
    if args.resume:
        trainer.resume()
    else:
        trainer.start()
    trainer.load_pool()
    trainer.run()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
