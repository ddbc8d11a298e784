#!/usr/bin/env bash
# Checks on one GPU everything that a GPU can be asked; from a checkout, uninstalled, offline, in a few minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU here"; print(torch.__version__, torch.cuda.get_device_name())'
python3 -m pytest -p no:cacheprovider -m gpu -n 4 tests/gpu
python3 -m mla_verify check --all --device cuda --examples 200
python3 -m mla_verify bench --device cuda
