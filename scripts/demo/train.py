"""Trains the bundled demo checkpoint: a tiny Gemma 3 with a SigLIP tower that answers questions about coloured shapes.

python scripts/demo/train.py [--out models/demo] [--work DIR] [--resume]
CPU only, seeded, budgets in steps. Two processes of one thread each work on halves of every batch and average their gradients
(cheaper than two threads in one process when the operators are this small). Three stages:
1. the tower and projector alone: a helper head reads shape and colour of each cell of the picture from the soft tokens;
2. the text model alone (the features of all pictures are computed once), on questions about one picture, then about one, two and three;
3. the same in larger steps, while the learning rate goes to zero.
The helper head is thrown away. The checkpoint is written every --save-every steps of stages 2 and 3 and at the end.
"""

import argparse
import functools
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

from transformers.models.gemma3 import modeling_gemma3

import checkpoint
import data
import shapes

PROCESSES = 2
TOWER_BATCH = 48
EVERYTHING = {"single_tree": 34, "single_turns": 6, "pair_tree": 28, "pair_turns": 27, "three": 2, "talk": 3}
PLANS = {  # rows per process and step, and how often which kind: small steps as long as the text model searches, then larger ones
    "single": (6, {"single_tree": 84, "single_turns": 12, "talk": 4}),
    "pairs": (6, EVERYTHING),
    "settle": (12, EVERYTHING),
}


class FastNorm(torch.autograd.Function):
    """RMSNorm of Gemma 3 (float32 inside, factor 1 + weight) with a backward pass by hand: a third of a step's time less."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt_()
        normed, factor = wide * scale, 1 + weight
        ctx.save_for_backward(normed, factor, scale)
        ctx.dtype = x.dtype
        return (normed * factor).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        normed, factor, scale = ctx.saved_tensors
        grad = grad.float()
        grad_weight = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * factor
        along = torch.linalg.vecdot(grad, normed).unsqueeze(-1) / normed.shape[-1]
        return torch.addcmul(grad, normed, along, value=-1).mul_(scale).to(ctx.dtype), grad_weight, None


class Reader(nn.Module):
    """Helper heads that are thrown away: they read shape and colour of the nine cells of a picture out of its soft tokens.

    At first through nine learnt mixtures of the tokens (easy to learn); then each cell from one token of its own, the other
    tokens being empty, and from every token its own place (easy to use for the text model).
    """
    SLOTS = (0, 1, 3, 4, 5, 7, 12, 13, 15)

    def __init__(self, tokens, width):
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(10, tokens))
        with torch.no_grad():
            side = math.isqrt(tokens)
            for cell in range(9):
                for t in range(tokens):
                    dy, dx = (t // side + 0.5) / side - (cell // 3 + 0.5) / 3, (t % side + 0.5) / side - (cell % 3 + 0.5) / 3
                    self.mix[cell, t] = -20 * (dx * dx + dy * dy)
        self.shape = nn.Linear(width, len(shapes.SHAPES) + 1)
        self.colour = nn.Linear(width, len(shapes.COLOUR_NAMES) + 1)
        self.ground = nn.Linear(width, len(shapes.COLOUR_NAMES))
        self.place = nn.Linear(width, tokens)
        self.shape_before = nn.Linear(width, len(shapes.SHAPES) + 1)
        self.colour_before = nn.Linear(width, len(shapes.COLOUR_NAMES) + 1)
        self.changed = nn.Linear(width, 2)

    def in_slots(self, targets, tokens):
        empty = torch.zeros(len(targets), tokens, dtype=torch.long)
        place = torch.tensor(self.SLOTS)
        return empty.index_copy(1, place, targets[:, :9]), empty.index_copy(1, place, targets[:, 9:18])

    def before_loss(self, early, later, before, now):
        """Asks a picture's tokens inside the text model what the picture before it showed at their place, and a layer later
        whether that is something else than now. early, later [n, tokens, width]; before, now: targets [n, 19]."""
        early, later = (F.rms_norm(h.float(), h.shape[-1:]) for h in (early, later))
        (ts, tc), (ns, nc) = (self.in_slots(t, early.shape[1]) for t in (before, now))
        return (F.cross_entropy(self.shape_before(early).flatten(0, 1), ts.flatten())
                + F.cross_entropy(self.colour_before(early).flatten(0, 1), tc.flatten())
                + F.cross_entropy(self.changed(later).flatten(0, 1), ((ts != ns) | (tc != nc)).long().flatten()))

    def loss(self, features, targets, slots):
        """features [n, tokens, width], targets [n, 19] of data.cell_targets. Returns loss, share of pictures all right."""
        mixed = torch.einsum("ct,ntd->ncd", self.mix.softmax(-1), features)
        ts, tc, tg = targets[:, :9], targets[:, 9:18], targets[:, 18]
        cells, more = mixed[:, :9], 0.2 * F.cross_entropy(self.ground(mixed[:, 9]), tg)
        if slots:
            count, tokens = features.shape[:2]
            cells, (ts, tc) = features, self.in_slots(targets, tokens)
            more = more + 0.2 * F.cross_entropy(self.place(features).flatten(0, 1), torch.arange(tokens).repeat(count))
        shape, colour = self.shape(cells), self.colour(cells)
        loss = F.cross_entropy(shape.flatten(0, 1), ts.flatten()) + F.cross_entropy(colour.flatten(0, 1), tc.flatten()) + more
        right = ((shape.argmax(-1) == ts) & (colour.argmax(-1) == tc)).all(1).float().mean()
        return loss, right.item()


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        random.seed(args.seed)
        torch.set_num_threads(1)
        self.tokenizer = checkpoint.build_tokenizer()
        self.processor = checkpoint.build_processor(self.tokenizer)
        self.model = checkpoint.build_model(self.tokenizer)
        self.model.set_attn_implementation("eager")  # on a CPU its backward pass is faster than that of the fused kernel
        self.text = self.model.config.text_config
        self.kept = {}
        for n in (1, 2):
            self.model.model.language_model.layers[n].register_forward_hook(functools.partial(self.keep, n))
        self.reader = Reader(checkpoint.SOFT_TOKENS, self.text.hidden_size)
        groups = {(tower, decay): [] for tower in (True, False) for decay in (0.02, 0.0)}
        for name, p in list(self.model.named_parameters()) + list(self.reader.named_parameters()):
            groups["vision_tower" in name or "projector" in name, 0.02 if p.dim() >= 2 else 0.0].append(p)
        self.opt = torch.optim.AdamW([{"params": p, "tower": tower, "weight_decay": decay} for (tower, decay), p in groups.items()],
                                     lr=0, betas=(0.9, 0.98), eps=1e-8)
        self.step, self.memory = 0, None

    def keep(self, number, layer, inputs, output):
        self.kept[number] = output[0] if isinstance(output, tuple) else output

    def log(self, text):
        if self.args.rank:
            return
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def load_pool(self):
        path = os.path.join(self.args.work, f"pictures-{self.args.groups}.pt")
        if not self.args.rank and not os.path.exists(path):
            self.log(f"drawing {3 * self.args.groups} pictures")
            torch.save(data.draw_pool(self.args.groups, checkpoint.IMAGE_SIZE), path + ".new")
            os.replace(path + ".new", path)
        distributed.barrier()
        self.scenes, self.pixels = torch.load(path, weights_only=False, mmap=True)
        self.targets = torch.tensor([[data.cell_targets(s) for s in triple] for triple in self.scenes])
        self.log("pictures ready")
        self.talks = data.Conversations(self.tokenizer, self.scenes, checkpoint.SOFT_TOKENS, checkpoint.WINDOW)

    def rate(self, step):
        """Learning rate: linear warm-up and cosine, three times in stage 1, once in stages 2 and 3."""
        a = self.args
        slots_at, settle_at = a.tower_steps - a.slot_steps, a.tower_steps + a.single_steps + a.pair_steps
        if step < a.tower_first:
            at, total, peak, floor = step, a.tower_first, a.tower_lr, 0.25
        elif step < slots_at:
            at, total, peak, floor = step - a.tower_first, slots_at - a.tower_first, a.tower_lr, 0.1
        elif step < a.tower_steps:
            at, total, peak, floor = step - slots_at, a.slot_steps, a.tower_lr * 0.6, 0.03
        elif step < settle_at:
            at, total, peak, floor = step - a.tower_steps, settle_at - a.tower_steps, a.lr, 0.2
        else:
            return a.lr * 0.2 * max(0.01, 1 - (step - settle_at) / a.settle_steps)
        return peak * min(1.0, (at + 1) / 100) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, at / total))))

    def features(self, pictures, rng=None):
        """rng: half of the pictures are mirrored, and all are moved by up to two pixels."""
        groups, members = torch.tensor(pictures).unbind(1)
        pixels, targets = self.pixels[groups, members], self.targets[groups, members]
        if rng:
            pixels, targets = data.varied(pixels, targets, rng)
        return self.model.model.get_image_features(data.normalise(pixels)).pooler_output, targets

    def remember(self):
        """Computes the features of the whole pool for the time in which the tower doesn't learn, each process one half."""
        path = os.path.join(self.args.work, "features.bin")
        groups, shape = self.args.groups, (3, checkpoint.SOFT_TOKENS, self.text.hidden_size)
        if not self.args.rank:
            with open(path, "wb") as f:
                f.truncate(2 * groups * math.prod(shape))
        distributed.barrier()
        self.memory = torch.from_file(path, shared=True, size=groups * math.prod(shape), dtype=torch.bfloat16).view(groups, *shape)
        with torch.no_grad():
            for first in range(self.args.rank * 16, groups, PROCESSES * 16):
                some = [(g, k) for g in range(first, min(groups, first + 16)) for k in range(3)]
                self.memory[first:first + 16] = self.features(some)[0].unflatten(0, (-1, 3))
        distributed.barrier()
        self.log("features ready")

    def any_picture(self, rng):
        return rng.randrange(self.args.groups), rng.randrange(3)

    def answers_loss(self, batch):
        """Only the text model learns (what it would tell the tower is noise while it knows nothing)."""
        body = self.model.model
        ids = torch.where(batch["soft"], torch.zeros_like(batch["ids"]), batch["ids"])
        embeds = body.language_model.embed_tokens(ids)
        helper = torch.zeros(())
        if batch["pictures"]:
            groups, members = torch.tensor(batch["pictures"]).unbind(1)
            runs = self.memory[groups, members][batch["slots"]].flatten(0, 1)
            embeds = embeds.masked_scatter(batch["soft"][..., None], runs.to(embeds.dtype))
        masks = {kind: torch.where(batch[key], 0.0, -1e4).to(torch.bfloat16 if self.args.bf16 else torch.float32)
                 for kind, key in (("full_attention", "full"), ("sliding_attention", "sliding"))}
        hidden = body.language_model(inputs_embeds=embeds, position_ids=batch["positions"], use_cache=False,
                                     attention_mask=masks).last_hidden_state
        compared = batch["before"] >= 0
        if compared.any():
            early, later = (self.kept[n][batch["soft"]].view(-1, checkpoint.SOFT_TOKENS, self.text.hidden_size)[compared]
                            for n in (1, 2))
            shown = torch.tensor(batch["pictures"])
            before, now = (self.targets[shown[at[compared], 0], shown[at[compared], 1]] for at in (batch["before"], batch["slots"]))
            helper = helper + 0.5 * self.reader.before_loss(early, later, before, now)
        wanted = batch["labels"][:, 1:] != -100
        target = batch["labels"][:, 1:][wanted]
        logits = self.model.lm_head(hidden[:, :-1][wanted]).float()
        loss = F.cross_entropy(logits, target)
        branch = batch["branch"][:, 1:][wanted] + 1000 * torch.arange(len(batch["ids"]))[:, None].expand_as(wanted)[wanted]
        wrong = branch[logits.argmax(-1) != target].unique().numel()
        return loss, helper, 1 - wrong / branch.unique().numel()

    def average_gradients(self, text_only):
        """Over the processes; parameters that don't learn now keep no gradient, so that nothing decays them either."""
        params = list(self.model.model.language_model.parameters()) + list(self.reader.parameters()) if text_only else [
            p for group in self.opt.param_groups for p in group["params"]]
        flat = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in params])
        distributed.all_reduce(flat)
        at = 0
        for p in params:
            p.grad = flat[at:at + p.numel()].view_as(p) / PROCESSES
            at += p.numel()

    def run(self):
        a = self.args
        total = a.tower_steps + a.single_steps + a.pair_steps + a.settle_steps
        sums, started = [], time.time()
        while self.step < total:
            rng = random.Random(f"{a.seed}:{self.step}:{a.rank}")
            for group in self.opt.param_groups:
                group["lr"] = self.rate(self.step)
            at = self.step - a.tower_steps
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(a.bf16)):
                if at < 0:
                    pictures = [self.any_picture(rng) for _ in range(TOWER_BATCH)]
                    features, targets = self.features(pictures, rng)
                    helper, right = self.reader.loss(features.float(), targets, self.step >= a.tower_steps - a.slot_steps)
                    loss, exact, whole = torch.zeros(()), 0.0, helper
                else:
                    stage = "single" if at < a.single_steps else "pairs" if at < a.single_steps + a.pair_steps else "settle"
                    if self.memory is None:
                        self.remember()
                    loss, helper, exact = self.answers_loss(self.talks.batch(rng, PLANS[stage]))
                    right, whole = 0.0, loss + helper
            whole.backward()
            self.average_gradients(at >= 0)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            self.step += 1
            sums.append((loss.item(), helper.item(), exact, right))
            if self.step % a.log_every == 0:
                mean = [sum(s[i] for s in sums) / len(sums) for i in range(4)]
                self.log(f"step {self.step}/{total} loss {mean[0]:.4f} helper {mean[1]:.4f} answers right {mean[2]:.4f} "
                         f"pictures right {mean[3]:.4f} lr {self.rate(self.step):.2e} {(time.time() - started) / len(sums):.3f} s/step")
                sums, started = [], time.time()
            if self.step % a.save_every == 0:
                self.store()
                started = time.time()
        self.store()

    def store(self):
        if self.args.rank:
            return
        path = os.path.join(self.args.work, "state.pt")
        torch.save({"model": self.model.state_dict(), "reader": self.reader.state_dict(), "opt": self.opt.state_dict(),
                    "step": self.step}, path + ".new")
        os.replace(path + ".new", path)
        if self.args.out and self.step > self.args.tower_steps:
            checkpoint.save(self.model, self.processor, self.args.out)

    def resume(self):
        state = torch.load(os.path.join(self.args.work, "state.pt"))
        self.model.load_state_dict(state["model"])
        self.reader.load_state_dict(state["reader"])
        self.opt.load_state_dict(state["opt"])
        self.step = state["step"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", default="models/demo")
    p.add_argument("--work", default="build/demo", help="folder for the pictures and the state of an interrupted run")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--seed", type=int, default=20)
    p.add_argument("--groups", type=int, default=40000, help="groups of three pictures in the pool")
    p.add_argument("--tower-first", type=int, default=1200, help="steps of the first cosine of stage 1")
    p.add_argument("--tower-steps", type=int, default=6200, help="all steps of stage 1")
    p.add_argument("--slot-steps", type=int, default=3000, help="the last steps of stage 1, where every cell gets a token of its own")
    p.add_argument("--single-steps", type=int, default=1500)
    p.add_argument("--pair-steps", type=int, default=4700)
    p.add_argument("--settle-steps", type=int, default=600)
    p.add_argument("--tower-lr", type=float, default=1.5e-3)
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    p.add_argument("--bf16", type=int, default=1, help="1: bf16 autocast, 0: float32")
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--save-every", type=int, default=200)
    args = p.parse_args()
    os.makedirs(args.work, exist_ok=True)
    meeting = os.path.join(os.path.abspath(args.work), "meeting")
    if args.rank == 0:
        if os.path.exists(meeting):
            os.remove(meeting)
        for rank in range(1, PROCESSES):
            subprocess.Popen([sys.executable] + sys.argv + ["--rank", str(rank)])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method="file://" + meeting, rank=args.rank, world_size=PROCESSES)
    modeling_gemma3.Gemma3RMSNorm.forward = lambda norm, x: FastNorm.apply(x, norm.weight, norm.eps)
    trainer = Trainer(args)
    if args.resume:
        trainer.resume()
    trainer.load_pool()
    trainer.run()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
