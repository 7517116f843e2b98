"""lm-eval (EleutherAI's harness) with local-completions, unchanged, on the tasks in lm_eval/: log-likelihoods
of answers and of whole texts, and generated answers; equal numbers on a second run and under load. And a
multiple choice about an image by `continuations`. LM_EVAL_HF: the checkpoint's folder, which lm-eval's own
backend, transformers, evaluates too (then the environment needs torch); its numbers are within 1e-3."""
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request

from common import HOST, IMAGE, MODEL, run

TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm_eval")


def evaluate(model, arguments):
    """-> the results, and of each document what the model said of it."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder}
        subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments,
                        "--device", "cpu", "--include_path", ".",
                        "--tasks", "kvasir_choice,kvasir_perplexity,kvasir_generate",
                        "--output_path", os.path.join(folder, "out"), "--log_samples"],
                       cwd=TASKS, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(*glob.glob(f"{folder}/out/*/results_*.json"), encoding="utf-8") as f:
            results = json.load(f)["results"]
        said = {}
        for path in glob.glob(f"{folder}/out/*/samples_*.jsonl"):
            with open(path, encoding="utf-8") as f:
                for doc in map(json.loads, f):
                    said[os.path.basename(path).split("_2")[0], doc["doc_id"]] = doc["resps"]
    assert len(said) == 3 * 12 and results, (len(said), results)
    return results, said


def served():
    return evaluate("local-completions", f"base_url={HOST}/v1/completions,model={MODEL},num_concurrent=4,"
                                         "max_retries=1,tokenizer_backend=remote")


def ask(path, body):
    r = urllib.request.Request(HOST + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=600) as answer:
        return json.load(answer)


class Load:
    """Other requests, while it is entered."""

    def __enter__(self):
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.others, args=(i,)) for i in range(3)]
        for t in self.threads:
            t.start()

    def others(self, i):
        while not self.over.is_set():
            ask("/v1/completions", {"prompt": f"Once {i} upon a time", "max_tokens": 20 + i})

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


def loglikelihood_and_generate():
    first, second = served(), served()
    assert first == second, (first[0], second[0])
    with Load():
        third = served()
    assert first == third, (first[0], third[0])


def transformers():
    folder = os.environ.get("LM_EVAL_HF")
    if not folder:
        return
    (ours, said), (theirs, wanted) = served(), evaluate("hf", f"pretrained={folder},dtype=float32")
    for task, metrics in theirs.items():
        for name, value in metrics.items():
            if isinstance(value, float):
                assert abs(ours[task][name] - value) <= 1e-3 * max(1, abs(value)), (ours[task], metrics)
    numbers = [(a, b) for key in wanted if "generate" not in key[0]
               for a, b in zip(str(said[key]).split("'"), str(wanted[key]).split("'")) if b[-1:].isdigit()]
    assert len(numbers) > 24, said
    worst = max(abs(float(a) - float(b)) for a, b in numbers)
    print(f"log-likelihoods differ from transformers' by at most {worst:.1e}")
    assert worst < 1e-3, worst


def images():
    """Which answer about an image is likeliest: the image is encoded and its prompt computed once."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "What shape is this?"},
                                             {"type": "image_url", "image_url": {"url": IMAGE}}]}]
    body = {"messages": messages, "continuations": ["a circle", "a square", "a triangle", "a star"],
            "logprobs": True, "return_token_ids": True}

    def scores():
        choices = ask("/v1/chat/completions", body)["choices"]
        return [(c["logprob"], c["is_greedy"], c["token_ids"], c["logprobs"]) for c in choices]

    first = scores()
    with Load():
        assert all(scores() == first for _ in range(5))
    assert len({logprob for logprob, *_ in first}) == 4, first


run("lm_eval", loglikelihood_and_generate, transformers, images)
