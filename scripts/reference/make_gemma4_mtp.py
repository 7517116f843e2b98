#!/usr/bin/env python3
"""Makes tests/golden/gemma4-mtp/: tiny Gemma 4 targets with a fitted drafter each (assistant/ in the
folder), and every round of greedy speculative decoding with them.

    make_gemma4_mtp.py [--out DIR] [VARIANT ...]        all variants when none is named

The target and its answers are files as in tests/golden/gemma4; what a round has to give stands beside them
(format: README.md here). The drafter is one of transformers' own classes, fitted for a few hundred steps to
what the target says, so that some drafts are accepted and some are not.

A round begins with n known tokens, of which the target has seen n - 1. Drafts are those of a clean state:
keys and values of positions 0 to n - 2 only, the target's final-norm row of n - 2, and position n - 1 in
every step. So:
* transformers' own rounds differ behind a rejection, because it slices the keys to length n and keeps stale
  ones;
* its sliding mask lets the drafter see the last W + 1 positions, other descriptions say W: the rounds are
  stored for W, and for W + 1 under the same names with `_wider` behind them (they are equal where nothing
  leaves the window);
* its property kv_sharing_modes raises for a drafter (all of whose layers share) and gives a target without
  shared layers no keys to hand over; it is replaced here, and must be what it was wherever it works;
* num_kv_shared_layers, absent, is filled in; vocab_size_per_layer_input and hidden_size_per_layer_input must
  be 0;
* a token outside of the chosen clusters gets the least chosen logit minus one; only the best one counts
  here."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as nn  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig  # noqa: E402

import golden_parts as parts  # noqa: E402
import make_gemma4 as whole  # noqa: E402
import make_gemma4_parts as own  # noqa: E402

from make_gemma4_variants import LONG, cfg, chat, e2b, raw, rope  # noqa: E402
from make_qwen_checks import NotTelling, need  # noqa: E402

S, F = "sliding_attention", "full_attention"
parts.GENERATED = 24
TEXTS = ["The gulls", "A woman in a yellow coat", "When the fog", "Nobody on deck", "Two and two", "What is",
         "She lost"]

VARIANTS = {
    "e2b_f32": dict(
        family="gemma4", seed=100, template="small", distinct=5, drafts=3, tries=40,
        gains=dict(scores=1.2, mix=0.5),
        text=e2b(layer_types=[S, F, S, F], num_kv_shared_layers=2, sliding_window=48),
        assistant=dict(use_ordered_embeddings=True, num_centroids=24, centroid_intermediate_top_k=6),
        cases=[
            raw("Why?",
                "shorter than the window of 48; the target's keys of layers 0 and 1; 6 of 24 clusters of 15"),
            raw(LONG, "goes past the window")]),
    "31b_f32": dict(
        family="gemma4", seed=200, template="large", spelling="released", distinct=5, drafts=4, tries=40,
        text=cfg(attention_k_eq_v=True, num_attention_heads=4, num_key_value_heads=2,
                 num_global_key_value_heads=1, sliding_window=40, layer_types=[S, F, S, F],
                 rope_parameters=rope()),
        gains=dict(scores=1.2, mix=0.5), assistant={},
        cases=[
            chat(("u", "Why?"),
                 note="keys of layers 2 and 3, one KV head in the full one; a head over all tokens"),
            raw(LONG, "goes past the window of 40")])}


def sharing(original):
    def modes(self):
        kinds, count, shared = self.layer_types, self.num_hidden_layers, self.num_kv_shared_layers
        if shared == count:
            return ["reuse"] * count
        first = count - shared
        out = [None] * first + ["reuse"] * shared
        for kind in set(kinds):
            out[max(i for i in range(first) if kinds[i] == kind)] = "store"
        if shared:
            assert out == original.fget(self)
        return out

    return property(modes)


Gemma4TextConfig.kv_sharing_modes = sharing(Gemma4TextConfig.kv_sharing_modes)


def build_assistant(v, target, seed):
    """A drafter like the released ones: four layers, S S S F, the target's head sizes, a cap of none."""
    t = target.config
    text = {
        k: v["text"][k]
        for k in ("vocab_size", "head_dim", "global_head_dim", "sliding_window", "rope_parameters")}
    text |= dict(hidden_size=20, intermediate_size=28, num_attention_heads=v["text"]["num_attention_heads"],
                 num_key_value_heads=v["text"]["num_key_value_heads"], attention_k_eq_v=t.attention_k_eq_v,
                 num_global_key_value_heads=v["text"].get("num_global_key_value_heads"),
                 layer_types=[S, S, S, F], num_hidden_layers=4, num_kv_shared_layers=4,
                 hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, final_logit_softcapping=None,
                 model_type="gemma4_text", max_position_embeddings=2048)
    config = AutoConfig.for_model("gemma4_assistant", text_config=text, backbone_hidden_size=t.hidden_size,
                                  tie_word_embeddings=True, **v["assistant"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    own.fill(model, seed, head=1.2, scores=1.0, mix=0.5)
    return model


@torch.no_grad()
def told(target, ids):
    """What the target hands over after `ids`: final-norm rows [T, H], keys and values by kind, the best next
    tokens."""
    out = target(input_ids=torch.tensor([ids]), use_cache=False, return_shared_kv_states=True,
                 output_hidden_states=True)
    assert torch.equal(out.hidden_states[-1], target.model(input_ids=torch.tensor([ids]), use_cache=False)[0])
    return out.hidden_states[-1][0], dict(out.shared_kv_states), out.logits[0].argmax(-1)


def masks_for(count, window, extra=1):
    """Row r is pending token r + 1, which sees 0 to r; sliding layers the last window + extra of them."""
    i = torch.arange(count)
    full = i[None, :] <= i[:, None]
    near = full & (i[:, None] - i[None, :] < window + extra)
    return {
        k: torch.where(m, 0.0, torch.finfo(torch.float32).min)[None, None] for k, m in ((F, full), (S, near))}


def sequences(target, prompts, seed):
    """Texts that the target writes: greedy behind the prompts, and sampled ones."""
    out = []
    torch.manual_seed(seed)
    for k, prompt in enumerate(prompts):
        ids = list(prompt)
        for _ in range(40 if k < len(prompts) else 20):
            with torch.no_grad():
                last = target(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(
                int(last.argmax()) if k < 2 or k % 3 else int(torch.multinomial(torch.softmax(last, -1), 1)))
        out.append(ids)
    return out


def fit(assistant, target, texts, steps, depth, seed):
    """Cross-entropy to the target's own next tokens, `depth` steps of a round deep, all positions of a text
    at once."""
    torch.manual_seed(seed)
    scale = target.model.embed_tokens
    known = [(ids, *told(target, ids)) for ids in texts]
    window, masked = target.config.sliding_window, assistant.masked_embedding
    trained = [p for p in assistant.parameters()]
    best = torch.optim.Adam(trained, lr=6e-3)
    if masked is not None:
        cluster = torch.empty(masked.vocab_size, dtype=torch.long)
        cluster[masked.token_ordering] = torch.arange(masked.vocab_size) // masked.vocab_size_per_centroid
    for step in range(steps):
        ids, hidden, shared, _best = known[step % len(known)]
        count, loss = len(ids) - 1 - depth, 0.0
        keys = {k: (a[:, :, :count], b[:, :, :count]) for k, (a, b) in shared.items()}
        state = hidden[:count]
        for k in range(depth):
            token = torch.tensor(ids[k + 1 : count + k + 1])
            x = assistant.pre_projection(torch.cat([scale(token).detach(), state], -1)[None])
            y = assistant.model(inputs_embeds=x, attention_mask=masks_for(count, window, step % 2),
                                shared_kv_states=keys, position_ids=torch.arange(1, count + 1)[None],
                                use_cache=False, output_hidden_states=True).last_hidden_state
            state, aim = assistant.post_projection(y)[0], torch.tensor(ids[k + 2 : count + k + 2])
            loss = loss + nn.cross_entropy(assistant.lm_head(y)[0], aim)
            if masked is not None:
                loss = loss + 0.5 * nn.cross_entropy(masked.centroids(y)[0], cluster[aim])
        best.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        best.step()
    for p in assistant.parameters():
        p.requires_grad_(False)
    return float(loss.detach()) / depth


@torch.no_grad()
def draft(assistant, target, ids, count, extra=1):
    """The drafts behind ids, whose last token is pending, and their logits. extra: see masks_for; 1 is what
    transformers gives."""
    n = len(ids)
    hidden, shared, _best = told(target, ids[:-1])
    state, token, out, all_logits = hidden[-1][None, None], torch.tensor([[ids[-1]]]), [], []
    limit = target.config.sliding_window + extra
    for _ in range(count):
        keys = dict(shared)
        if extra != 1:
            keys[S] = tuple(t[:, :, -limit:] for t in keys[S])
        x = torch.cat([target.model.embed_tokens(token), state], -1)
        made = assistant(inputs_embeds=x, attention_mask=None, position_ids=torch.tensor([[n - 1]]),
                         shared_kv_states=keys, use_cache=False)
        token, state = made.logits.argmax(-1), made.last_hidden_state
        out.append(int(token))
        all_logits.append(made.logits[0, 0])
    return out, all_logits


def rounds_of(assistant, target, v, prompt, said, extra):
    """All rounds behind a prompt whose greedy continuation is `said`."""
    rounds, logits, known, most = [], [], list(prompt) + said[:1], len(prompt) + len(said)
    while len(known) < most:
        count = min(v["drafts"], most - len(known) - 1)
        drafts, made = draft(assistant, target, known, count, extra) if count else ([], [])
        for row in made:
            two = torch.topk(row, 2).values
            need(float(two[0] - two[1]) > 1e-3, f"a draft is near a tie: {float(two[0] - two[1]):.5f}")
        follow = said[len(known) - len(prompt) :]
        accepted = next((k for k in range(count) if drafts[k] != follow[k]), count)
        emitted = follow[: accepted + 1]
        rounds.append({"n": len(known), "drafted": drafts, "accepted": accepted, "emitted": emitted})
        logits.append(made)
        known += emitted
    return rounds, logits


def speculate(v, target, ready, texts, tensors, plain, seed, folder):
    """Fits a drafter, and writes it and its rounds; returns the cases."""
    assistant, cases, drafted, accepted = build_assistant(v, target, seed), [], 0, 0
    loss = fit(assistant, target, texts, v.get("steps", 300), 2, seed)
    assistant.generation_config.update(
        num_assistant_tokens=v["drafts"], num_assistant_tokens_schedule="constant")
    assistant.save_pretrained(folder)
    if v.get("spelling") == "released":

        def released(c):
            text = c["text_config"]
            del text["per_layer_config"], text["num_kv_shared_layers"]
            for k in ("global_head_dim", "num_global_key_value_heads"):
                text[k] = v["text"].get(k)

        parts.edit_json(folder / "config.json", released)
    assistant = parts.load(AutoModelForCausalLM, folder, torch.float32)
    for n, (case, rendered, p, new, measured) in enumerate(ready):
        for extra, wider in ((1, "_wider"), (0, "")):
            rounds, logits = rounds_of(assistant, target, v, p.ids, new, extra)
            key, most = f"case{n}.", v["drafts"]
            tensors[key + "round_tokens" + wider] = np.array([r["n"] for r in rounds], np.int32)
            padded = [r["drafted"] + [-1] * (most - len(r["drafted"])) for r in rounds]
            tensors[key + "drafts" + wider] = np.array(padded, np.int32)
            tensors[key + "accepted" + wider] = np.array([r["accepted"] for r in rounds], np.int32)
        drafted += sum(len(r["drafted"]) for r in rounds)
        accepted += sum(r["accepted"] for r in rounds)
        if rounds[1]["n"] < v["text"]["sliding_window"]:
            tensors[key + "draft_logits"] = torch.stack([row for made in logits[:2] for row in made]).numpy()
        measured = measured | {
            "accepted": [sum(r["accepted"] for r in rounds), sum(len(r["drafted"]) for r in rounds)],
            "assisted_generate_equal": assisted(target, assistant, p, new)}
        head = {"id": n, "kind": case["kind"], "note": case["note"], "images": 0, "videos": 0,
                "prompt_tokens": len(p.ids), "image_spans": [], "spans": [], "template": case["template"]}
        body = {"prompt": case["prompt"]} if case["kind"] == "raw" else {"messages": case["messages"]}
        cases.append(
            head | body
            | {"rendered": rendered, "greedy_text": plain.decode(new, skip_special_tokens=False),
               "rounds": rounds, "measured": measured})
    need(0.15 < accepted / drafted < 0.9, f"{accepted} of {drafted} drafts are accepted (loss {loss:.2f})")
    ends = {r["accepted"] for c in cases for r in c["rounds"]}
    need(0 in ends and v["drafts"] in ends, f"rounds end only with {sorted(ends)} accepted")
    return cases


def attempt(name, v, seed, folder):
    filled = whole.build_checkpoint(v, seed, folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    target = parts.load(AutoModelForCausalLM, folder, torch.float32)
    parts.same_model(target, filled)
    tensors, prompts, ready = {}, [], []
    for n, case in enumerate(v["cases"]):
        rendered, _rgb, _films, p = whole.prepare(case, v, tokenizer, plain)
        new, measured = parts.run_case(f"case{n}.", p, v, target, None, tensors, lambda m: whole.check(m, v),
                                       {own.token_ids()[t] for t in own.TAIL})
        prompts.append(p.ids)
        ready.append((case, rendered, p, new, measured))
    prompts += [tokenizer(t)["input_ids"] for t in TEXTS]
    texts = sequences(target, prompts, seed)
    for again in range(8):
        try:
            cases = speculate(
                v, target, ready, texts, tensors, plain, seed + 1000 * again, folder / "assistant")
            break
        except NotTelling as e:
            print(f"    drafter {again}: {e}", flush=True)
    else:
        raise NotTelling("no drafter fits")
    c = target.config
    about = {"variant": name, "family": v["family"], "weights": "float32", "seed": seed, "soft_tokens": 0,
             "vocab": c.vocab_size, "sliding_window": c.sliding_window, "layer_types": c.layer_types,
             "assistant": "assistant", "drafts": v["drafts"], "fitted_steps": v.get("steps", 300)}
    parts.write_golden(folder, about, cases, tensors)
    return cases


@torch.no_grad()
def assisted(target, assistant, p, said):
    """transformers' own speculative decoding gives the greedy tokens, too (its drafts may differ: see
    above)."""
    out = target.generate(**p.prompt_inputs(torch.float32), assistant_model=assistant,
                          max_new_tokens=len(said), min_new_tokens=len(said), do_sample=False,
                          eos_token_id=[], pad_token_id=0, top_k=None, top_p=None, temperature=None)
    return out[0, len(p.ids) :].tolist() == said


if __name__ == "__main__":
    parts.main(__doc__, "gemma4-mtp", VARIANTS, attempt)
