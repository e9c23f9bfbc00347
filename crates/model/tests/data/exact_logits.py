#!/usr/bin/env python3
"""Makes exact_logits.json: exact logits (float64, nothing quantised on the way) of tiny models: one per format, one per
feature of the architecture.

  pip install gguf numpy
  crates/model/tests/data/exact_logits.py > exact_logits.json      (from the project's root)

The models are written by the fixtures crate, so a change there makes new values necessary.
"""
import json, pathlib, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import llama_oracle as oracle

FORMATS = ['F32', 'F16', 'BF16', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q2_K', 'Q3_K', 'Q4_K', 'Q5_K', 'Q6_K',
           'IQ4_NL', 'IQ4_XS']
FEATURES = ['tied', 'biases', 'wide-heads', 'one-kv-head', 'no-groups', 'rope-freqs', 'rope-linear', 'rope-base', 'qwen2']
IDS = [1] + [3 + 17 * i % 310 for i in range(23)]
POSITIONS = [0, 1, 11, 23]

out = {'ids': IDS, 'positions': POSITIONS, 'logits': {}}
for name in FORMATS + FEATURES:
    with tempfile.NamedTemporaryFile(suffix='.gguf') as f:
        subprocess.run(['cargo', 'xtask', 'synth', name, f.name], check=True)
        logits = oracle.Model(f.name, oracle.np.float64).forward(IDS)
    out['logits'][name] = [[round(float(v), 5) for v in logits[p]] for p in POSITIONS]
json.dump(out, sys.stdout, separators=(',', ':'))
