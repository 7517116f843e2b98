"""Does a tiny model react to what its variant is there for? The checks of make_qwen.py: what moves when a picture, its position, a tap,
a window, an expert or a frequency is wrong. And the position rule, written down once more, by formula."""
import contextlib
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F


class NotTelling(Exception):
    """This seed's model would prove too little; the next one is tried."""


def need(condition, why):
    if not condition:
        raise NotTelling(why)


class Pictures:
    """Model inputs of a prompt. types: 0 text, 1 image, 2 video; pixels and grids as the processor gives them."""

    def __init__(self, ids, kinds=None, pixels=None, grid=None, video_pixels=None, video_grid=None, seconds=None):
        self.ids, self.types = list(ids), kinds
        self.pixels, self.grid, self.video_pixels, self.video_grid = pixels, grid, video_pixels, video_grid
        self.seconds = None if seconds is None else [float(s) for s in seconds]

    def but(self, **change):
        other = Pictures(self.ids, self.types)
        other.__dict__.update(self.__dict__ | change)
        return other

    def inputs(self, ids, dtype):
        out = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if self.types is not None:
            out["mm_token_type_ids"] = torch.tensor([self.types + [0] * (len(ids) - len(self.types))], dtype=torch.int)
        if self.pixels is not None:
            out |= {"pixel_values": self.pixels.to(dtype), "image_grid_thw": self.grid}
        if self.video_pixels is not None:
            out |= {"pixel_values_videos": self.video_pixels.to(dtype), "video_grid_thw": self.video_grid}
            if self.seconds is not None:
                out["second_per_grid_ts"] = torch.tensor(self.seconds)
        return out

    def spans(self):
        """[first, end, kind] of each run of picture tokens."""
        out = []
        for i, t in enumerate(self.types or []):
            if t and (i == 0 or self.types[i - 1] != t):
                out.append([i, i, t])
            if t:
                out[-1][1] = i + 1
        return out

    def parts(self, c):
        """(what stands in each span, next free position behind it). frames: of a video, the first and how many groups of two; grid: in
        tokens; seconds: rope positions between two groups."""
        if not self.spans():
            return []
        step, side = getattr(c.vision_config, "tokens_per_second", None), c.vision_config.spatial_merge_size
        out, at, group, nxt, last = [], {1: 0, 2: 0}, 0, 0, 0
        for begin, end, kind in self.spans():
            k = at[kind]
            t, h, w = (self.grid if kind == 1 else self.video_grid)[k].tolist()
            alone = kind == 2 and c.model_type.startswith(("qwen3_vl", "qwen3_5"))  # a group of frames stands for itself, behind its time stamp
            pace = 0.0 if kind == 1 or alone else float(np.float32(step) * np.float32(self.seconds[k])) if step else 1.0
            whole, t, first = t, (1 if alone else t), group
            group = group + 1 if alone and group + 1 < whole else 0
            at[kind] += group == 0
            h, w = h // side, w // side
            assert end - begin == t * h * w
            nxt += begin - last
            out.append(({"begin": begin, "end": end, "kind": "video" if kind == 2 else "image", "index": k, "first": first, "grid": [t, h, w],
                         "seconds": pace, "base": nxt}, nxt + 1 + max(int(np.float32(t - 1) * np.float32(pace)), h - 1, w - 1)))
            nxt, last = out[-1][1], end
        return out

    def positions(self, model, ids):
        """[3, len(ids)] as transformers has them."""
        if self.grid is None and self.video_grid is None:
            return np.tile(np.arange(len(ids)), (3, 1))
        inputs = self.inputs(ids, torch.float32)
        wanted = {k: inputs[k] for k in ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts") if k in inputs}
        return model.model.get_rope_index(**wanted)[0][:, 0].numpy()

    def blocks(self):
        """(pixels' name, first row, end) of each picture, images first."""
        out = []
        for name, grid in (("pixels", self.grid), ("video_pixels", self.video_grid)):
            start = 0
            for g in (grid if grid is not None else []):
                out.append((name, start, start + int(g.prod())))
                start += int(g.prod())
        return out


def positions_by_formula(model, p, count):
    """The scan from left to right: text is (N, N, N); a picture's token (t, y, x) is (B + floor(t seconds), B + y, B + x), and behind it
    N is B + 1 + max(floor((t - 1) seconds), h - 1, w - 1)."""
    out, nxt = [], 0
    for part, behind in p.parts(model.config):
        while len(out) < part["begin"]:
            out.append((nxt, nxt, nxt))
            nxt += 1
        (t, h, w), pace = part["grid"], part["seconds"]
        assert nxt == part["base"]
        out += [(nxt + int(np.float32(f) * np.float32(pace)), nxt + y, nxt + x) for f in range(t) for y in range(h) for x in range(w)]
        nxt = behind
    while len(out) < count:
        out.append((nxt, nxt, nxt))
        nxt += 1
    return np.array(out).T


@contextlib.contextmanager
def float_inputs_rounded():
    """Inputs of every matrix product rounded to bf16, all else in float32: what hardware with bf16 products
    and f32 sums does. Of Gemma 4 queries, keys and values too, as they leave their norms and rotations."""
    import transformers.models.gemma4.modeling_gemma4 as g4
    linear, conv = F.linear, F.conv3d
    rotate, norm = g4.apply_rotary_pos_emb, g4.Gemma4RMSNorm.forward

    def bf16(x):
        return x.to(torch.bfloat16).to(x.dtype)

    g4.apply_rotary_pos_emb = lambda *a, **k: bf16(rotate(*a, **k))
    g4.Gemma4RMSNorm.forward = lambda self, x: norm(self, x) if self.with_scale else bf16(norm(self, x))

    def rounded(fn):
        return lambda x, *a, **k: fn(x.to(torch.bfloat16).to(x.dtype), *a, **k)

    F.linear, F.conv3d = rounded(linear), rounded(conv)
    try:
        yield
    finally:
        F.linear, F.conv3d = linear, conv
        g4.apply_rotary_pos_emb, g4.Gemma4RMSNorm.forward = rotate, norm


def routers(model):
    return [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]


def routing_gap(model, run):
    """Least distance of the last chosen expert's probability to the first one not chosen; None without experts."""
    gaps = []
    hooks = [m.register_forward_hook(lambda m, a, o: gaps.append(float((lambda s: s[:, m.top_k - 1] - s[:, m.top_k])(
        torch.softmax(o[0].float(), -1).sort(-1, descending=True).values).min()))) for m in routers(model)]
    run()
    for h in hooks:
        h.remove()
    return min(gaps) if gaps else None


@contextlib.contextmanager
def changed(thing, **attributes):
    old = {k: getattr(thing, k) for k in attributes}
    for k, a in attributes.items():
        setattr(thing, k, a)
    try:
        yield
    finally:
        for k, a in old.items():
            setattr(thing, k, a)


@contextlib.contextmanager
def hooked(modules, fn):
    hooks = [m.register_forward_hook(fn) for m in modules]
    try:
        yield
    finally:
        for h in hooks:
            h.remove()


def other_sections(rotary):
    """Chunked where the model interleaves and the other way round."""
    s = rotary.mrope_section
    if "Qwen3" in type(rotary).__name__:
        def recompose(self, freq):
            f = torch.cat([m[i % 3] for i, m in enumerate(freq.split(s, dim=-1))], -1)
            return torch.cat([f, f], -1)
    else:
        def recompose(self, freq):
            f = freq[0].clone()
            for a in (1, 2):
                f[..., a:3 * s[a]:3] = freq[a, ..., a:3 * s[a]:3]
            return torch.cat([f, f], -1)
    return types.MethodType(recompose, rotary)


def experts_renormalised_otherwise(module, _args, out):
    logits, scores, chosen = out
    plain = torch.softmax(logits.float(), -1).gather(-1, chosen)
    other = plain if torch.allclose(scores.sum(-1), torch.ones(()).to(scores), atol=1e-3) else plain / plain.sum(-1, keepdim=True)
    return logits, other.to(scores.dtype), chosen


def check_reacts(model, v, p, lp, logprobs, positions):
    """Each change must move the mean log-prob of some rows by more than a margin: pictures and an early token those of the prompt's last
    row; a wrong rule (mean over the rows from the first picture on, or all rows of text) by less, yet by far more than 1e-4."""
    margin, ids, least = v.get("margin", 0.08), p.ids, {}
    rule = 0.0 if v.get("dtype") else 0.02  # bf16 variants are gentle, and there for the rounding; the rules are the f32 variants' matter
    spans = p.spans()
    all_rows = slice(spans[0][0] if spans else 0, None)
    behind = slice(min(spans[0][1], len(ids) - 1) if spans else 0, None)

    def moved(what, limit, rows, q=None, tokens=None, **change):
        got = logprobs(model, q or p, tokens or ids, **change)[rows]
        delta = float((got - lp[:len(ids)][rows]).abs().mean())
        need(delta > limit, f"{what}: mean |change| is only {delta:.4f}")
        least[what] = round(delta, 3)

    first = max(2, len(ids) - v.get("reach", len(ids)))
    at = next(i for i in range(first, len(ids)) if not p.types or not p.types[i])
    moved("early token", margin / 2, slice(-1, None), tokens=ids[:at] + [40 if ids[at] != 40 else 41] + ids[at + 1:])
    text = model.model.language_model if spans or "vision" in v else model.model
    if len(routers(model)):
        with hooked(routers(model), experts_renormalised_otherwise):
            moved("experts' weights", rule, all_rows)
    c = model.config.get_text_config()
    if "sliding_attention" in (getattr(c, "layer_types", None) or []):
        with changed(c, layer_types=["full_attention"] * c.num_hidden_layers):
            moved("no windows", rule, slice(-10, None))
        with changed(c, sliding_window=c.sliding_window + 1):
            moved("window one wider", rule, slice(-10, None))
    if "linear_attention" in (getattr(c, "layer_types", None) or []):
        check_recurrence(model, c, moved, rule, all_rows)
    rotary = text.rotary_emb
    if rotary and rotary.rope_type == "yarn":
        plain = rotary.compute_default_rope_parameters(c)[0]
        with changed(rotary, inv_freq=plain):
            moved("no YaRN frequencies", rule, slice(-20, None))
        if rotary.attention_scaling != 1:
            with changed(rotary, attention_scaling=1.0):
                moved("no YaRN factor", rule, slice(-20, None))
    if not spans:
        return least
    check_pictures(model, v, p, moved, margin, rule, behind, all_rows, positions, rotary)
    return least


def delta_layers(model):
    return [m for m in model.modules() if type(m).__name__.endswith("GatedDeltaNet")]


def delta_module(model):
    """The module whose functions are the two rules."""
    return sys.modules[delta_layers(model)[0].__module__]


@contextlib.contextmanager
def token_by_token(model):
    """The recurrent rule in prefill, too."""
    code = delta_module(model)
    with changed(code, torch_chunk_gated_delta_rule=code.torch_recurrent_gated_delta_rule):
        yield


def check_recurrence(model, c, moved, rule, all_rows):
    code = delta_module(model)
    chunked = code.torch_chunk_gated_delta_rule

    def other(change):
        def run(q, k, v, g, beta, **more):
            a = dict(q=q, k=k, v=v, g=g, beta=beta)
            a |= change(**a)
            return chunked(a["q"], a["k"], a["v"], g=a["g"], beta=a["beta"], **more)
        return changed(code, torch_chunk_gated_delta_rule=run)

    times = c.linear_num_value_heads // c.linear_num_key_heads
    wrong = {"no decay": lambda g, **_: {"g": 0 * g}, "no beta": lambda beta, **_: {"beta": beta * 0 + 0.5}}
    if times > 1 and c.linear_num_key_heads > 1:
        wrong["key heads in the other order"] = lambda q, k, **_: {"q": q.repeat(1, 1, times, 1),
                                                                   "k": k.repeat(1, 1, times, 1)}
    for what, change in wrong.items():
        with other(change):
            moved(what, rule, all_rows)
    layers = delta_layers(model)
    weights = [m.conv1d.weight.data.clone() for m in layers]
    for m in layers:
        m.conv1d.weight.data[..., :-1] = 0
    moved("no convolution", rule, all_rows)
    for m, w in zip(layers, weights):
        m.conv1d.weight.data.copy_(w)


def check_pictures(model, v, p, moved, margin, rule, behind, all_rows, positions, rotary):
    blocks, spans, visual = p.blocks(), p.spans(), model.model.visual
    for k, (name, a, b) in enumerate(blocks):
        other = getattr(p, name).clone()
        other[a:b] = -other[a:b].flip(0)
        moved(f"picture {k}", margin / 2, slice(-1, None), p.but(**{name: other}))
    for (name, a, b), (name2, c, d) in zip(blocks, blocks[1:]):
        if name == name2 and b - a == d - c and not torch.equal(getattr(p, name)[a:b], getattr(p, name)[c:d]):
            swapped = getattr(p, name).clone()
            swapped[a:b], swapped[c:d] = getattr(p, name)[c:d], getattr(p, name)[a:b]
            moved("order of two", margin / 2, slice(-1, None), p.but(**{name: swapped}))
    now = positions[:, :len(p.ids)]
    turned = torch.from_numpy(now)[:, None]
    if (np.diff(now) != 1).any():
        moved("plain positions", rule, all_rows, position_ids=torch.arange(len(p.ids)).expand(3, 1, -1))
        moved("height and width exchanged", rule, all_rows, position_ids=turned[[0, 2, 1]])
        moved("time and height exchanged", rule, all_rows, position_ids=turned[[1, 0, 2]])
        if spans[0][1] < len(p.ids):
            late = turned.clone()
            late[..., spans[0][1]:] += spans[0][1] - spans[0][0] - 2
            moved("positions behind a picture by its token count", rule, behind, position_ids=late)
        with changed(rotary, recomposition_frequencies=other_sections(rotary)):
            moved("other order of sections", rule, all_rows)
    flat = model.model.visual.rotary_pos_emb
    with changed(flat, inv_freq=flat.inv_freq * 0):
        moved("tower without rotary", rule, all_rows)
    if hasattr(visual, "fullatt_block_indexes"):
        every = list(range(len(visual.blocks)))
        vision = model.config.vision_config
        wide = max(max(g[1:]) for g in (p.grid if p.grid is not None else p.video_grid).tolist()) * vision.patch_size
        if wide > vision.window_size:
            with changed(visual, fullatt_block_indexes=every):
                moved("tower without windows", rule, all_rows)
            with changed(visual, fullatt_block_indexes=[]):
                moved("tower with windows only", rule, all_rows)
    if hasattr(visual, "pos_embed"):
        with changed(visual, interpolation_align_corners=False):
            moved("position rows without aligned corners", rule, all_rows)

        def drop(_m, _a, out):
            out.deepstack_features = [0 * f for f in out.deepstack_features]
            return out

        def turn(_m, _a, out):
            out.deepstack_features = out.deepstack_features[1:] + out.deepstack_features[:1]
            return out

        taps = getattr(visual, "deepstack_visual_indexes", [])
        if taps:
            with hooked([visual], drop):
                moved("no DeepStack", rule, all_rows)
        if len(taps) > 1:
            with hooked([visual], turn):
                moved("DeepStack taps exchanged", rule, all_rows)
    if p.video_pixels is not None:
        side = model.config.vision_config.patch_size ** 2
        half = p.video_pixels.reshape(len(p.video_pixels), 3, 2, side).flip(2).reshape(len(p.video_pixels), -1)
        moved("two frames of a group exchanged", rule / 2, all_rows, p.but(video_pixels=half))
