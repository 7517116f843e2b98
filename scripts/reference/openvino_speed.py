#!/usr/bin/env python3
"""Tokens per second of OpenVINO GenAI on a checkpoint, as `kvasir bench` measures them: prefill of 512 and
2,048 random tokens, decoding at batch 1, 8 and 32 behind 128 tokens. On two threads, products in bf16.

    pip install openvino-genai optimum-intel[openvino]
    optimum-cli export openvino -m MODEL_DIR --task text-generation-with-past \\
        --weight-format fp16|int8 OUT_DIR
    openvino_speed.py OUT_DIR [THREADS]
"""
import json
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

STEPS = 32


def main():
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    pipe = genai.LLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY",
                             INFERENCE_PRECISION_HINT="bf16", ATTENTION_BACKEND="SDPA")
    rng = np.random.default_rng(1)

    def run(batch, length, new):
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new
        config.ignore_eos, config.do_sample = True, False
        ids = rng.integers(1000, 20000, (batch, length)).astype(np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        begin = time.perf_counter()
        got = pipe.generate(inputs, config)
        return got.perf_metrics.get_ttft().mean / 1e3, time.perf_counter() - begin

    out = {}
    for length in (512, 2048):
        run(1, length, 1)
        out[f"prefill {length}"] = round(length / run(1, length, 1)[0], 1)
    for batch in (1, 8, 32):
        first, whole = run(batch, 128, STEPS + 1)
        out[f"decode {batch}"] = round(batch * STEPS / (whole - first), 1)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
