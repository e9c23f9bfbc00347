#!/usr/bin/env python3
"""Makes oracle_formats.json: exact logits (float64, nothing quantised on the way) of the tiny model of each format.

  pip install gguf numpy
  oracle_formats.py PATH/TO/llama_oracle.py > oracle_formats.json      (from the project's root)

The models are written by the fixtures crate, so a change there makes new values necessary.
"""
import importlib.util, json, subprocess, sys, tempfile

FORMATS = ['F32', 'F16', 'BF16', 'Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q4_K', 'Q5_K', 'Q6_K']
IDS = [1] + [3 + 17 * i % 310 for i in range(23)]
POSITIONS = [0, 1, 11, 23]

spec = importlib.util.spec_from_file_location('oracle', sys.argv[1])
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)
out = {'ids': IDS, 'positions': POSITIONS, 'logits': {}}
for name in FORMATS:
    with tempfile.NamedTemporaryFile(suffix='.gguf') as f:
        subprocess.run(['cargo', 'xtask', 'synth', name, f.name], check=True)
        logits = oracle.Model(f.name, oracle.np.float64).forward(IDS)
    out['logits'][name] = [[round(float(v), 5) for v in logits[p]] for p in POSITIONS]
json.dump(out, sys.stdout, separators=(',', ':'))
